// Command lint checks the fences of this repository: rules that no general linter knows.
//
//	go run ./scripts/lint [DIR]
//
// It reads every file that git tracks or would track below DIR (default: the working directory),
// prints one line per violation and exits 1 if there is any. The rules are in rules.go.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	found, files, err := check(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
		os.Exit(2)
	}
	for _, v := range found {
		fmt.Println(v)
	}
	if len(found) > 0 {
		fmt.Fprintf(os.Stderr, "lint: %d violations in %d files\n", len(found), files)
		os.Exit(1)
	}
}

// check applies all rules to the files below dir and returns how many it read.
func check(dir string) ([]violation, int, error) {
	names, err := list(dir)
	if err != nil {
		return nil, 0, err
	}
	var found []violation
	files := 0
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(dir, name))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			return nil, 0, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, 0, err
		}
		files++
		found = append(found, judge(filepath.ToSlash(name), text)...)
	}
	return found, files, nil
}

// list names tracked files and untracked ones that are not ignored.
func list(dir string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files in %s: %w", dir, err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}
