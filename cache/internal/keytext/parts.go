package keytext

import (
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"unsafe"
)

// Keys of several parts
//
// The text of a struct or an array joins the texts of its parts, in the order in which they are
// declared, with slashes: acme/42. A part is a field or an element that has no parts itself,
// however deep it is nested, so all keys of a type have the same number of parts. A slash or a
// backslash within a part is escaped by a backslash, so a bare slash always separates parts.
// Different keys therefore have different texts, if the texts of their parts differ.
//
// Other processes and releases know a key by this text, so it must never change:
// see TestTheTextOfAKeyStaysAsItIs.

const (
	separator = '/'
	escape    = '\\'

	maxParts = 1024 // parts of an array
)

var (
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// A part is a string, a number, a bool, an encoding.TextMarshaler or an array of bytes somewhere
// in a key.
type part struct {
	path   string  // names of the fields, for errors
	offset uintptr // in the key
	of     reflect.Type
	append func(text []byte, v reflect.Value) ([]byte, error)
	set    func(v reflect.Value, text string) error // reverses append; nil if that is not possible
}

// in returns the part of a key as a value that reflect takes for exported.
func (p part) in(key unsafe.Pointer) reflect.Value {
	return reflect.NewAt(p.of, unsafe.Add(key, p.offset)).Elem()
}

// parts are all parts of a type, which together distinguish its keys.
type parts []part

// partsOf returns the parts of a type. The error names the field that has no text.
func partsOf(of reflect.Type) (parts, error) { return partsAt(of, "", 0) }

func partsAt(of reflect.Type, path string, offset uintptr) (parts, error) {
	leaf := part{path: path, offset: offset, of: of}
	switch kind := of.Kind(); {
	case of.Size() == 0: // it has one value
		return nil, nil
	case kind == reflect.Pointer, kind == reflect.Interface: // two may be different keys and have one MarshalText
	case of.Implements(textMarshaler):
		leaf.append = appendMarshaled
		if reflect.PointerTo(of).Implements(textUnmarshaler) {
			leaf.set = setMarshaled
		}
		return parts{leaf}, checkMarshaler(of, path)
	case kind == reflect.String:
		leaf.append, leaf.set = appendString, setString
	case kind == reflect.Bool:
		leaf.append, leaf.set = appendBool, setBool
	case kind >= reflect.Int && kind <= reflect.Int64:
		leaf.append, leaf.set = appendInt, setInt
	case kind >= reflect.Uint && kind <= reflect.Uintptr:
		leaf.append, leaf.set = appendUint, setUint
	case kind == reflect.Array && of.Elem().Kind() == reflect.Uint8 && !of.Elem().Implements(textMarshaler):
		leaf.append, leaf.set = appendHex, setHex
	case kind == reflect.Array:
		return partsOfElements(of, path, offset)
	case kind == reflect.Struct:
		return partsOfFields(of, path, offset)
	}
	if leaf.append == nil {
		return nil, noText(path, fmt.Sprintf("of kind %v", of.Kind()))
	}
	return parts{leaf}, nil
}

func noText(path, why string) error {
	if path == "" {
		return fmt.Errorf("it is %s", why)
	}
	return fmt.Errorf("%s is %s", path, why)
}

func partsOfFields(of reflect.Type, path string, offset uintptr) (all parts, err error) {
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Name == "_" { // == passes it over
			continue
		}
		name := f.Name
		if path != "" {
			name = path + "." + name
		}
		ps, err := partsAt(f.Type, name, offset+f.Offset)
		if err != nil {
			return nil, err
		}
		all = append(all, ps...)
	}
	return all, nil
}

func partsOfElements(of reflect.Type, path string, offset uintptr) (all parts, err error) {
	each, err := partsAt(of.Elem(), path+"[]", 0)
	if len(each)*of.Len() > maxParts {
		return nil, noText(path, fmt.Sprintf("an array with more than %d parts", maxParts))
	}
	for i := 0; i < of.Len() && len(each) > 0; i++ {
		for _, p := range each {
			p.offset += offset + uintptr(i)*of.Elem().Size()
			all = append(all, p)
		}
	}
	return all, err
}

// checkMarshaler returns an error if the MarshalText of a struct comes from an embedded field,
// which does not know the other fields: keys that differ in these would have the same text.
func checkMarshaler(of reflect.Type, path string) error {
	for of.Kind() == reflect.Struct && isPromoted(of) {
		var told []reflect.StructField
		for _, f := range reflect.VisibleFields(of) {
			if len(f.Index) == 1 && f.Name != "_" && f.Type.Size() > 0 {
				told = append(told, f)
			}
		}
		if len(told) != 1 {
			return noText(path, fmt.Sprintf("a %s, whose MarshalText is that of an embedded field and leaves out the other fields", of))
		}
		of = told[0].Type
	}
	return nil
}

// isPromoted reports whether the MarshalText of a struct is promoted from a field: the compiler
// has then generated it.
func isPromoted(of reflect.Type) bool {
	m, ok := of.MethodByName("MarshalText")
	if !ok {
		return false
	}
	code := runtime.FuncForPC(m.Func.Pointer())
	file, _ := code.FileLine(code.Entry())
	return file == "<autogenerated>"
}

// text returns the text of a key.
func (ps parts) text(key unsafe.Pointer) (string, error) {
	text, err := make([]byte, 0, 32), error(nil)
	for i, p := range ps {
		if i > 0 {
			text = append(text, separator)
		}
		if text, err = p.append(text, p.in(key)); err != nil {
			return "", fmt.Errorf("%s: %w", p.path, err)
		}
	}
	return unsafe.String(unsafe.SliceData(text), len(text)), nil // text is not written to any more
}

// comeBack reports whether a text can be turned back into a key.
func (ps parts) comeBack() bool {
	for _, p := range ps {
		if p.set == nil {
			return false
		}
	}
	return true
}

// set turns the zero key into the key of a text.
func (ps parts) set(key unsafe.Pointer, text string) error {
	texts, err := split(text)
	switch {
	case err != nil:
		return err
	case len(ps) == 0 && text == "":
		return nil
	case len(texts) != len(ps):
		return fmt.Errorf("%d parts in place of %d", len(texts), len(ps))
	}
	for i, p := range ps {
		if err := p.set(p.in(key), texts[i]); err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
	}
	return nil
}

// split returns the unescaped parts of a text.
func split(text string) (texts []string, err error) {
	var one []byte
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case separator:
			texts, one = append(texts, string(one)), one[:0]
			continue
		case escape:
			if i++; i == len(text) {
				return nil, errors.New("a backslash at its end")
			}
		}
		one = append(one, text[i])
	}
	return append(texts, string(one)), nil
}

func appendEscaped[T string | []byte](to []byte, text T) []byte {
	for i := range len(text) {
		if b := text[i]; b == separator || b == escape {
			to = append(to, escape)
		}
		to = append(to, text[i])
	}
	return to
}

func appendString(text []byte, v reflect.Value) ([]byte, error) {
	return appendEscaped(text, v.String()), nil
}

func setString(v reflect.Value, text string) error { v.SetString(text); return nil }

func appendBool(text []byte, v reflect.Value) ([]byte, error) {
	return strconv.AppendBool(text, v.Bool()), nil
}

func setBool(v reflect.Value, text string) error {
	b, err := strconv.ParseBool(text)
	v.SetBool(b)
	return err
}

func appendInt(text []byte, v reflect.Value) ([]byte, error) {
	return strconv.AppendInt(text, v.Int(), 10), nil
}

func setInt(v reflect.Value, text string) error {
	n, err := strconv.ParseInt(text, 10, v.Type().Bits())
	v.SetInt(n)
	return err
}

func appendUint(text []byte, v reflect.Value) ([]byte, error) {
	return strconv.AppendUint(text, v.Uint(), 10), nil
}

func setUint(v reflect.Value, text string) error {
	n, err := strconv.ParseUint(text, 10, v.Type().Bits())
	v.SetUint(n)
	return err
}

func appendHex(text []byte, v reflect.Value) ([]byte, error) {
	return hex.AppendEncode(text, v.Bytes()), nil
}

func setHex(v reflect.Value, text string) error {
	if len(text) != 2*v.Len() {
		return fmt.Errorf("%d digits in place of %d", len(text), 2*v.Len())
	}
	_, err := hex.Decode(v.Bytes(), []byte(text))
	return err
}

func appendMarshaled(text []byte, v reflect.Value) ([]byte, error) {
	own, err := v.Interface().(encoding.TextMarshaler).MarshalText()
	return appendEscaped(text, own), err
}

func setMarshaled(v reflect.Value, text string) error {
	return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
}
