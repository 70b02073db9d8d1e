package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"causeway/host/limit"
)

// Load reads a file. The error of a file that is not there is fs.ErrNotExist.
func Load(name string) (Config, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return Config{}, err
	}
	c, err := Parse(b)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// Parse reads a file's text over the defaults, and checks it.
func Parse(b []byte) (Config, error) {
	c := Default()
	c.Profiles = nil
	d := toml.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, explain(err)
	}
	if c.Profiles == nil {
		c.Profiles = limit.Profiles()
	}
	if err := checkNumbers(b); err != nil {
		return Config{}, err
	}
	if err := c.Check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// numbers are the limits for which a file may have numbers where words or units are wanted, which a
// decoded Config does not show any more.
type numbers struct {
	Memory any `toml:"memory"`
	Cap    any `toml:"cap"`
}

func (n *numbers) check(key string) error {
	var errs []error
	if v, ok := n.Memory.(int64); ok {
		if err := new(limit.Memory).UnmarshalText(fmt.Append(nil, v)); err != nil {
			errs = append(errs, wrong(key+".memory", v, err.Error()))
		}
	}
	if v, ok := n.Cap.(int64); ok {
		if err := new(limit.Cap).UnmarshalText(fmt.Append(nil, v)); err != nil {
			errs = append(errs, wrong(key+".cap", v, err.Error()))
		}
	}
	return errors.Join(errs...)
}

// checkNumbers: memory = 16 has no unit, and cap = 0 would let nothing run.
func checkNumbers(b []byte) error {
	var file struct {
		Devices   numbers            `toml:"devices"`
		Isolation numbers            `toml:"isolation"`
		Profiles  map[string]numbers `toml:"profiles"`
	}
	if err := toml.Unmarshal(b, &file); err != nil {
		return explain(err)
	}
	errs := []error{file.Devices.check("devices"), file.Isolation.check("isolation")}
	for name, p := range file.Profiles {
		errs = append(errs, p.check("profiles."+name))
	}
	return errors.Join(errs...)
}

// Text is a configuration as a file.
func (c *Config) Text() ([]byte, error) { return toml.Marshal(c) }

// explain says where a file is wrong and what might have been meant.
func explain(err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		var all []error
		for i := range unknown.Errors {
			e := &unknown.Errors[i]
			line, _ := e.Position()
			key := strings.Join(e.Key(), ".")
			all = append(all, fmt.Errorf("line %d: unknown key %s: did you mean %s?", line, key, nearest(key)))
		}
		return errors.Join(all...)
	}
	var wrong *toml.DecodeError
	if errors.As(err, &wrong) {
		line, column := wrong.Position()
		at := fmt.Sprintf("line %d, column %d", line, column)
		if key := strings.Join(wrong.Key(), "."); key != "" {
			at = fmt.Sprintf("line %d, key %s", line, key)
		}
		return fmt.Errorf("%s: %s", at, plain(strings.TrimPrefix(wrong.Error(), "toml: ")))
	}
	return err
}

// mismatch is what the decoder says of a value of another kind than the key's.
var mismatch = regexp.MustCompile(`^cannot decode TOML (\w+) into struct field \S+ of type (\S+)$`)

// plain says of a value of the wrong kind what to write, without the names of our types.
func plain(text string) string {
	m := mismatch.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	write := map[string]string{
		"string": `write text in quotes, as in "auto"`, "[]string": `write a list, as in ["one", "two"]`, "bool": "write true or false, without quotes",
		"int": "write a number, without quotes", "uint32": "write a number, without quotes", "float64": "write a number, as in 1.5, without quotes",
	}[m[2]]
	if write == "" {
		return text
	}
	return "a TOML " + m[1] + " stands there: " + write
}

// nearest is the known key that is most like a wrong one.
func nearest(key string) string {
	if key == "devices.weight" {
		return "devices.share" // its former name
	}
	best, least := "", 1<<30
	for _, k := range keys(reflect.TypeFor[Config](), "") {
		d := distance(key, k)
		// A key in the wrong section is near the right one.
		if last(key) == last(k) {
			d = min(d, 1)
		} else {
			d = min(d, distance(last(key), last(k))+1)
		}
		if d < least {
			best, least = k, d
		}
	}
	return best
}

func last(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// keys lists every key of a struct.
func keys(t reflect.Type, prefix string) []string {
	var list []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := prefix + f.Tag.Get("toml")
		list = append(list, name)
		if text := reflect.TypeFor[encoding.TextUnmarshaler](); f.Type.Kind() == reflect.Struct && !reflect.PointerTo(f.Type).Implements(text) {
			list = append(list, keys(f.Type, name+".")...)
		}
	}
	return list
}

// distance is Levenshtein's: how many letters to change, add or leave out.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
