package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TLS starts a server that speaks TLS at addr too. config trusts its certificate, which
// is made for the test.
func TLS(t testing.TB) (s *Server, addr string, config *tls.Config) {
	t.Helper()
	args, config := withTLS(t)
	port := strconv.Itoa(FreePort())
	s = Start(t, append(args, "--tls-port", port)...)
	return s, net.JoinHostPort("127.0.0.1", port), config
}

// ClusterTLS is like [Cluster], of nodes that speak TLS at addrs too, and only TLS with one
// another. A client that knows addrs is led to no other.
func ClusterTLS(t testing.TB) (c *ClusterServers, addrs []string, config *tls.Config) {
	t.Helper()
	args, config := withTLS(t)
	args = append(args, "--tls-cluster", "yes", "--tls-replication", "yes")
	c = startCluster(t, func() []string {
		port := strconv.Itoa(FreePort())
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", port))
		return append(slices.Clone(args), "--tls-port", port)
	}, func() string { return addrs[0] })
	return c, addrs, config
}

// withTLS returns the arguments of a server with a certificate that is made for the test, and
// a config that trusts it.
func withTLS(t testing.TB) (args []string, config *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	cert, key := certificate(t)
	for name, data := range map[string][]byte{"cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatalf("redistest: %v", err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return []string{
		"--tls-auth-clients", "no",
		"--tls-cert-file", filepath.Join(dir, "cert.pem"), "--tls-key-file", filepath.Join(dir, "key.pem"),
		"--tls-ca-cert-file", filepath.Join(dir, "cert.pem"),
	}, &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// certificate makes a certificate for 127.0.0.1 that signs itself.
func certificate(t testing.TB) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, // nodes of a cluster are each other's clients
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
}
