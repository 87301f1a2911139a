package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxFrame bounds what a length in the stream can make us read: Redis' own limit.
const maxFrame = 512 << 20

// readFrame reads one value of the Redis protocol, version 2 or 3, and returns
// its bytes exactly as they came.
func readFrame(r *bufio.Reader) ([]byte, error) {
	var frame bytes.Buffer
	if err := copyFrame(&frame, r, 0); err != nil {
		return nil, err
	}
	return frame.Bytes(), nil
}

func copyFrame(to *bytes.Buffer, r *bufio.Reader, depth int) error {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return err
	}
	to.Write(line)
	if len(line) == 1 && depth == 0 {
		return nil // a master sends bare newlines to keep its replica waiting
	}
	switch line[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return nil
	case '$', '!', '=', '*', '~', '>', '%', '|':
	default:
		return fmt.Errorf("this is not the Redis protocol: %.40q", line)
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(line[1:])), 10, 64)
	if err != nil || n > maxFrame || depth > 100 {
		return fmt.Errorf("this is not the Redis protocol: %.40q", line)
	}
	switch line[0] {
	case '$', '!', '=':
		if n < 0 {
			return nil // the nil of version 2
		}
		_, err = io.CopyN(to, r, n+2)
		return err
	case '%':
		n *= 2
	case '|':
		n = n*2 + 1 // attributes stand before the value they describe
	}
	for range n {
		if err := copyFrame(to, r, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// words returns the elements of a command or of a pub/sub message, as far as
// they are strings.
func words(frame []byte) []string {
	r := bufio.NewReader(bytes.NewReader(frame))
	head, err := r.ReadString('\n')
	if err != nil || head[0] != '*' && head[0] != '>' {
		return nil
	}
	var out []string
	for {
		element, err := readFrame(r)
		if err != nil {
			return out
		}
		word := ""
		if _, text, ok := bytes.Cut(element, []byte("\r\n")); ok && element[0] == '$' {
			word = strings.TrimSuffix(string(text), "\r\n")
		}
		out = append(out, word)
	}
}

// isCommand tells whether a command begins with the words of the pattern, of
// which the first counts without regard to case: "GET" is every GET, "GET k" that
// of one key, "" any command.
func isCommand(command []string, pattern string) bool {
	want := strings.Fields(pattern)
	if len(want) > len(command) {
		return false
	}
	for i, word := range want {
		if command[i] != word && (i > 0 || !strings.EqualFold(command[i], word)) {
			return false
		}
	}
	return true
}
