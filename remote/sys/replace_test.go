package sys

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// names are those in a folder.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		list = append(list, e.Name())
	}
	return list
}

// TestReplace: a file has the bytes and the mode, whatever the umask and whatever was there, and
// nothing else lies beside it.
func TestReplace(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	for _, c := range []struct {
		bytes string
		mode  fs.FileMode
	}{{"first", 0o644}, {"second, and longer", 0o600}, {"", 0o640}} {
		if err := Replace(name, []byte(c.bytes), c.mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(name); err != nil || string(b) != c.bytes || info.Mode() != c.mode {
			t.Errorf("%q of mode %v, %v; want %q of %v", b, info.Mode(), err, c.bytes, c.mode)
		}
	}
	if list := names(t, dir); !slices.Equal(list, []string{"file"}) {
		t.Errorf("in the folder: %q", list)
	}
}

// TestReplaceFollowsNoLink: a link of that name is replaced, and what it names is as it was.
func TestReplaceFollowsNoLink(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	name := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(victim, []byte("untouched"), 0o600), os.Symlink(victim, name)); err != nil {
		t.Fatal(err)
	}
	if err := Replace(name, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "untouched" {
		t.Errorf("the link's target: %q, %v", b, err)
	}
	if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v, %v in place of a link", info, err)
	}
}

// TestReplaceFails: what cannot be done leaves what was there, and nothing beside it.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(name, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Replace(name, []byte("new"), 0o644); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a folder is replaced: %v", err)
	}
	if list := names(t, dir); !slices.Equal(list, []string{"folder"}) {
		t.Errorf("in the folder: %q", list)
	}
	if err := Replace(filepath.Join(dir, "missing", "file"), nil, 0o644); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a folder that is not there: %v", err)
	}
}

// TestReplaceSweeps: what writers that died left goes, once none can be at it any more; what is not
// theirs stays.
func TestReplaceSweeps(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-unfinishedFor - time.Minute)
	for _, name := range []string{unfinished + "1", unfinished + "2", "." + unfinished + "3", "causeway-new-4", "other"} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), nil, 0o600), os.Chtimes(filepath.Join(dir, name), old, old)); err != nil {
			t.Fatal(err)
		}
	}
	fresh, folder := unfinished+"fresh", unfinished+"folder"
	if err := errors.Join(os.WriteFile(filepath.Join(dir, fresh), nil, 0o600), os.Mkdir(filepath.Join(dir, folder), 0o700), os.Chtimes(filepath.Join(dir, folder), old, old)); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"." + unfinished + "3", "causeway-new-4", "other", fresh, folder, "file"}
	slices.Sort(want)
	if list := names(t, dir); !slices.Equal(list, want) {
		t.Errorf("left: %q, want %q", list, want)
	}
}

// TestReplaceAtOnce: a reader finds one writer's bytes, never some of two, and every writer ends.
func TestReplaceAtOnce(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			b := bytes.Repeat([]byte{'a' + byte(i)}, 5000+i)
			for range 8 {
				if err := Replace(name, b, 0o644); err != nil {
					t.Error(err)
				}
				got, err := os.ReadFile(name)
				if err != nil || len(got) == 0 || len(got) != 5000+int(got[0]-'a') || bytes.Count(got, got[:1]) != len(got) {
					t.Errorf("%d bytes of %.1q, %v", len(got), got, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestReadRegular: only a file that can be one of ours is read, whatever lies there.
func TestReadRegular(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("file"), []byte("12345"), 0o600), os.Symlink(at("file"), at("link")), unix.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		most int64
		want error
	}{
		{"file", 5, nil}, {"file", 4, ErrNotRegular}, {"link", 5, ErrNotRegular}, {"pipe", 5, ErrNotRegular}, {".", 1 << 20, ErrNotRegular},
		{"missing", 5, fs.ErrNotExist},
	} {
		b, err := ReadRegular(at(c.name), c.most)
		if !errors.Is(err, c.want) || c.want == nil && string(b) != "12345" || c.want != nil && b != nil {
			t.Errorf("%s of at most %d bytes: %q, %v; want %v", c.name, c.most, b, err, c.want)
		}
	}
	if _, err := ReadRegular(at("file"), 4); err == nil || !strings.Contains(err.Error(), at("file")) {
		t.Errorf("the error does not say of which file: %v", err)
	}
}
