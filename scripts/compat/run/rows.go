package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// comparison says how two outputs are judged.
type comparison struct {
	kind string  // exact, numbers or status
	rel  float64 // largest relative difference of two numbers
}

// row is one line of the table: a program and its arguments.
type row struct {
	name, title, part string
	source            string   // the file that describes it
	args              []string // after the program
	program           string   // what to run; for .cu the binary, once built
	libs, flags, env  []string
	compare           comparison
	gap, note         string
	alone             bool
	fresh             bool          // native outcomes belong to one machine and are not reused
	gpus              int           // that it needs; 0: one will do, and it looks at all
	timeout           time.Duration // 0: the runner's default
	broken            string        // why it could not be prepared
}

// loadRows reads every description below dir, sorted by part and name.
func loadRows(dir string) ([]*row, error) {
	var rows []*row
	for _, pattern := range []string{"*/*.py", "*/*.cu", "*/*.sh"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			r, err := loadFile(f)
			if err != nil {
				return nil, err
			}
			rows = append(rows, r...)
		}
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		return strings.Compare(a.part+"/"+a.name, b.part+"/"+b.name)
	})
	seen := map[string]string{}
	for _, r := range rows {
		if other := seen[r.name]; other != "" {
			return nil, fmt.Errorf("%s and %s both describe a row %s", other, r.source, r.name)
		}
		seen[r.name] = r.source
	}
	return rows, nil
}

func loadFile(name string) ([]*row, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := parseRows(name, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return rows, nil
}

// parseRows reads the describing lines of one file; a file without a title describes no row.
func parseRows(name string, in io.Reader) ([]*row, error) {
	common := row{source: name, program: name, compare: comparison{kind: "exact"}, gpus: 1}
	var rows []*row
	perRow := map[string][]string{} // gap, note and alone lines, in order
	scan := bufio.NewScanner(in)
	for scan.Scan() {
		line, ok := strings.CutPrefix(scan.Text(), "#: ")
		if !ok {
			if line, ok = strings.CutPrefix(scan.Text(), "//: "); !ok {
				continue
			}
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("%q is not \"key: value\"", line)
		}
		value = strings.TrimSpace(value)
		switch key {
		case "speed":
			return nil, nil // a program of causeway-speed
		case "row":
			words := strings.Fields(value)
			if len(words) == 0 {
				return nil, fmt.Errorf("a row needs a name")
			}
			rows = append(rows, &row{name: words[0], args: words[1:]})
		case "gap", "note", "alone":
			perRow[key] = append(perRow[key], value)
		default:
			if err := common.set(key, value); err != nil {
				return nil, err
			}
		}
	}
	if err := scan.Err(); err != nil {
		return nil, err
	}
	if common.title == "" {
		return nil, nil
	}
	if len(rows) == 0 {
		base := filepath.Base(name)
		only := strings.TrimSuffix(base, filepath.Ext(base))
		if strings.HasSuffix(base, ".cu") {
			only = "c_" + only
		}
		rows = []*row{{name: only}}
	}
	for _, r := range rows {
		own := *r
		*r = common
		r.name, r.args = own.name, own.args
		r.gap, r.note = forRow(perRow["gap"], r.name), forRow(perRow["note"], r.name)
		for _, v := range perRow["alone"] {
			r.alone = r.alone || v == "yes" || slices.Contains(strings.Fields(v), r.name)
		}
	}
	return rows, nil
}

func (r *row) set(key, value string) error {
	var err error
	switch key {
	case "title":
		r.title = value
	case "part":
		r.part = value
	case "libs":
		r.libs = strings.Fields(value)
	case "flags":
		r.flags = strings.Fields(value)
	case "env":
		r.env = strings.Fields(value)
	case "fresh":
		r.fresh = value == "yes"
	case "gpus":
		if r.gpus = 0; value != "all" {
			r.gpus, err = strconv.Atoi(value)
		}
	case "timeout":
		var s int
		s, err = strconv.Atoi(value)
		r.timeout = time.Duration(s) * time.Second
	case "compare":
		r.compare, err = parseComparison(value)
	default:
		err = fmt.Errorf("no key %q", key)
	}
	return err
}

func parseComparison(value string) (comparison, error) {
	kind, rest, _ := strings.Cut(value, " ")
	switch kind {
	case "exact", "status":
		return comparison{kind: kind}, nil
	case "numbers":
		rel, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
		if err != nil {
			return comparison{}, fmt.Errorf("compare: numbers needs a relative difference: %w", err)
		}
		return comparison{kind: kind, rel: rel}, nil
	}
	return comparison{}, fmt.Errorf("compare: no way %q", kind)
}

// forRow picks what is said for one row, "NAME: text", or for all of a file, "text".
func forRow(lines []string, name string) string {
	all := ""
	for _, l := range lines {
		head, text, ok := strings.Cut(l, ": ")
		switch {
		case ok && head == name:
			return text
		case !ok || strings.ContainsAny(head, " ,"):
			all = l
		}
	}
	return all
}

// testRows are the CUDA programs of guest/tests: dirs are the folders of their variants, as in
// build/tests/13.0-static.
func testRows(dirs []string, expected string) []*row {
	var rows []*row
	texts, _ := filepath.Glob(filepath.Join(expected, "*.txt"))
	for _, d := range dirs {
		variant := filepath.Base(d)
		part := "3"
		if strings.HasPrefix(variant, "1") && variant != "13.0-static" {
			part = "6"
		}
		programs, _ := filepath.Glob(filepath.Join(d, "*"))
		for _, p := range programs {
			base := filepath.Base(p)
			st, err := os.Stat(p)
			if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 || strings.Contains(base, ".so") {
				continue
			}
			if len(texts) > 0 && !slices.Contains(texts, filepath.Join(expected, base+".txt")) {
				continue
			}
			rows = append(rows, &row{name: variant + "/" + base, title: "guest/tests/" + base + ".cu", part: part, source: p, program: p,
				compare: comparison{kind: "exact"}})
		}
	}
	return rows
}
