package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v2"

	"github.com/levee-go/levee/internal/redistest"
)

// A manifest has what the tests look at of the kinds that kubernetes.yaml uses.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		Selector    any
		MaxReplicas int               `yaml:"maxReplicas"`
		Target      map[string]string `yaml:"scaleTargetRef"`
		ServiceName string            `yaml:"serviceName"`
		Ports       []struct {
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
		Strategy struct {
			Rolling struct{ MaxSurge int } `yaml:"rollingUpdate"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []container
			}
		}
	}
}

type container struct {
	Args  []string
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	Env       []variable
	Resources struct{ Limits struct{ CPU, Memory string } }
	Startup   probe `yaml:"startupProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Liveness  probe `yaml:"livenessProbe"`
	Lifecycle struct {
		PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
	}
}

type variable struct {
	Name, Value string
	From        struct {
		Secret struct{ Name, Key string } `yaml:"secretKeyRef"`
	} `yaml:"valueFrom"`
}

type probe struct {
	Get struct{ Path, Port string } `yaml:"httpGet"`
}

// manifests reads kubernetes.yaml, and fails for a key that is there twice.
func manifests(t *testing.T) (all []manifest) {
	t.Helper()
	text, err := os.ReadFile("kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		err := documents.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

func find(t *testing.T, kind, name string) manifest {
	t.Helper()
	all := manifests(t)
	i := slices.IndexFunc(all, func(m manifest) bool { return m.Kind == kind && m.Metadata.Name == name })
	if i < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return all[i]
}

// mebibytes reads "384Mi", "320MiB" and "512mb" (which Redis takes for MiB too).
func mebibytes(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(regexp.MustCompile(`^\d+`).FindString(text))
	if err != nil || !regexp.MustCompile(`^\d+(Mi|MiB|mb)$`).MatchString(text) {
		t.Fatalf("%q: %v", text, err)
	}
	return n
}

func TestTheManifestsFitTogether(t *testing.T) {
	versions := map[string]string{
		"Deployment": "apps/v1", "StatefulSet": "apps/v1", "Service": "v1", "PodDisruptionBudget": "policy/v1", "HorizontalPodAutoscaler": "autoscaling/v2",
	}
	all := manifests(t)
	for _, m := range all {
		if versions[m.Kind] != m.APIVersion || m.Metadata.Name == "" {
			t.Errorf("%s %s is of %s", m.Kind, m.Metadata.Name, m.APIVersion)
		}
		if m.Kind == "StatefulSet" {
			find(t, "Service", m.Spec.ServiceName)
		}
	}
	if len(all) != 8 {
		t.Errorf("%d manifests", len(all))
	}
	d := find(t, "Deployment", "products").Spec
	if scaler := find(t, "HorizontalPodAutoscaler", "products"); scaler.Spec.Target["kind"] != "Deployment" || scaler.Spec.Target["name"] != "products" {
		t.Errorf("the autoscaler scales %v", scaler.Spec.Target)
	} else if n := (scaler.Spec.MaxReplicas + d.Strategy.Rolling.MaxSurge) * connections; !strings.Contains(text(t, "kubernetes.yaml"), strconv.Itoa(scaler.Spec.MaxReplicas+1)+" × "+strconv.Itoa(connections)+" connections") {
		t.Errorf("the database gets up to %d connections, and the file says something else", n)
	}
	c := d.Template.Spec.Containers[0]
	if pre := c.Lifecycle.PreStop.Sleep.Seconds; pre == 0 || d.Template.Spec.Grace < pre+5+12 { // serve waits for 5 s, Cache.Close for up to 12 s
		t.Errorf("%d s are left after %d s of preStop", d.Template.Spec.Grace-pre, pre)
	}
	for _, e := range c.Env {
		if e.Name == "GOMEMLIMIT" {
			if limit := mebibytes(t, c.Resources.Limits.Memory); mebibytes(t, e.Value)*100 > limit*85 {
				t.Errorf("GOMEMLIMIT %s leaves too little of %s", e.Value, c.Resources.Limits.Memory)
			}
		}
		if host, _, ok := strings.Cut(e.Value, ":6379"); ok {
			find(t, "Service", host)
		}
	}
	if c.Resources.Limits.CPU != "" {
		t.Errorf("a CPU limit of %s", c.Resources.Limits.CPU)
	}
	for name, want := range map[string][]string{"redis-cache": {"volatile-lru", "no"}, "redis-filter": {"noeviction", "yes"}} {
		r := find(t, "StatefulSet", name).Spec.Template.Spec.Containers[0]
		given := func(option string) string { return r.Args[slices.Index(r.Args, option)+1] }
		if given("--maxmemory-policy") != want[0] || given("--appendonly") != want[1] {
			t.Errorf("%s has %q", name, r.Args)
		}
		if most := mebibytes(t, given("--maxmemory")); mebibytes(t, r.Resources.Limits.Memory)*2 < most*3 {
			t.Errorf("%s has no room beside its maxmemory", name)
		}
	}
}

// Without an ADMIN_TOKEN cacheadmin refuses everybody, and no alert's runbook can be followed.
func TestOperatorsMayAct(t *testing.T) {
	env := find(t, "Deployment", "products").Spec.Template.Spec.Containers[0].Env
	i := slices.IndexFunc(env, func(v variable) bool { return v.Name == "ADMIN_TOKEN" })
	if i < 0 || !strings.Contains(text(t, "kubernetes.yaml"), "create secret generic "+env[i].From.Secret.Name+" ") ||
		!strings.Contains(text(t, "kubernetes.yaml"), "--from-literal="+env[i].From.Secret.Key+"=") {
		t.Error("kubernetes.yaml has no ADMIN_TOKEN of the secret that its head makes")
	}
	var compose struct {
		Services map[string]struct{ Environment map[string]string }
	}
	read(t, "compose.yaml", &compose)
	for _, name := range []string{"one", "two"} {
		if compose.Services[name].Environment["ADMIN_TOKEN"] == "" {
			t.Errorf("compose.yaml gives instance %s no ADMIN_TOKEN", name)
		}
	}
}

func text(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A probe that depends on Redis takes all pods out of service when Redis is down.
func TestTheProbesPassWithoutRedis(t *testing.T) {
	server, filter := redistest.Start(t), redistest.Start(t)
	i := start(t, "file:"+filepath.Join(t.TempDir(), "products.sqlite"), server.Addr(), filter.Addr())
	c := find(t, "Deployment", "products").Spec.Template.Spec.Containers[0]
	server.Kill()
	for _, p := range []probe{c.Startup, c.Readiness, c.Liveness} {
		at := i.api
		if p.Get.Port == "admin" {
			at = i.admin
		}
		began := time.Now()
		if status, _ := get(t, "http://"+at+p.Get.Path); status != http.StatusOK {
			t.Errorf("%+v: %d after %v", p, status, time.Since(began))
		}
	}
	server.Restart() // or the instance logs at ERROR, which fails the test
}
