package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// A wire is a connection to Redis without a client, for what a client would cost more than Redis does.
type wire struct {
	net.Conn
	in *bufio.Reader
}

func dialWire(addr string) (*wire, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &wire{conn, bufio.NewReaderSize(conn, 4<<10)}, nil
}

// wireCommand returns the bytes of a command.
func wireCommand(args ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b.Bytes()
}

// ask sends n commands and reads their replies.
func (w *wire) ask(n int, commands []byte) error {
	if _, err := w.Write(commands); err != nil {
		return err
	}
	for range n {
		if err := w.skip(); err != nil {
			return err
		}
	}
	return nil
}

// skip reads a reply, or a message, and drops it. A reply that is an error is one.
func (w *wire) skip() error {
	line, err := w.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	kind, text := line[0], strings.TrimSpace(string(line[1:]))
	n, _ := strconv.Atoi(text)
	switch kind {
	case '-', '!':
		return errors.New(text)
	case '$', '=':
		if n >= 0 {
			_, err = io.CopyN(io.Discard, w.in, int64(n)+2)
		}
	case '%':
		n *= 2
		fallthrough
	case '*', '>', '~':
		for ; n > 0 && err == nil; n-- {
			err = w.skip()
		}
	}
	return err
}
