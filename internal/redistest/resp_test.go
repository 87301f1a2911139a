package redistest

import (
	"bufio"
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestAFrameIsReadAsItCame(t *testing.T) {
	frames := []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "_\r\n", ",1.5\r\n", "#t\r\n", "(123\r\n", "\n",
		"$0\r\n\r\n", "$4\r\na\r\nb\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "=7\r\ntxt:abc\r\n", "!5\r\nERR x\r\n",
		"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", "%1\r\n+k\r\n~2\r\n:1\r\n:2\r\n", ">2\r\n+message\r\n$1\r\nx\r\n",
		"|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n",
	}
	r := bufio.NewReader(strings.NewReader(strings.Join(frames, "")))
	for _, want := range frames {
		if got, err := readFrame(r); err != nil || string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
}

func TestWordsOfACommand(t *testing.T) {
	got := words([]byte("*3\r\n$3\r\nGET\r\n:7\r\n$4\r\na\r\nb\r\n"))
	if !slices.Equal(got, []string{"GET", "", "a\r\nb"}) {
		t.Errorf("got %q", got)
	}
	for pattern, want := range map[string]bool{
		"": true, "get": true, "GET": true, "get product:1": true, "GET PRODUCT:1": false,
		"GET product:1 more": false, "GETEX": false, "GE": false,
	} {
		if isCommand([]string{"GET", "product:1"}, pattern) != want {
			t.Errorf("%q: %v", pattern, !want)
		}
	}
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"))
	f.Add([]byte("$999999999\r\nx"))
	f.Add([]byte("|1\r\n+ttl\r\n:3\r\n%1\r\n+k\r\n#f\r\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		frame, err := readFrame(bufio.NewReader(bytes.NewReader(input)))
		if err == nil && !bytes.HasPrefix(input, frame) {
			t.Errorf("%q was read as %q", input, frame)
		}
		words(input)
	})
}
