package lib

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// cacheScript sources cache.sh as the scripts do, with the folder $1/cache for a cache.
const cacheScript = `set -euo pipefail
ROOT=$PWD/../..
cd "$1"
say() { :; }
die() { echo "$*"; exit 1; }
stamped() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }
export CAUSEWAY_CACHE=$1/cache
. "$ROOT/scripts/lib/cache.sh"
`

// inCache runs a script after cacheScript, in a folder of the test's own.
func inCache(t *testing.T, dir, script string) string {
	t.Helper()
	out, err := exec.Command("bash", "-c", cacheScript+script, "-", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestCacheNamesContents(t *testing.T) {
	dir := t.TempDir()
	script := `a() { cache_entry kind "$1" f; }
echo one >f; x=$(a text); y=$(a other); echo two >f; z=$(a text); echo one >f
[ "$x" != "$y" ] && [ "$x" != "$z" ] && [ "$(a text)" = "$x" ] || die "$x $y $z"
CACHE=; [ -z "$(a text)" ] || die "a name without a cache"`
	inCache(t, dir, script)
}

// A folder is made once, whoever asks for it next has it, and one that was made from something else
// is not taken.
func TestCacheKeepsFolders(t *testing.T) {
	dir := t.TempDir()
	script := `make_it() { rm -rf "$1"; mkdir -p "$1/sub"; echo "$2" >"$1/.stamp"; echo made >"$1/sub/f"; chmod 755 "$1/sub/f"; echo "made $1"; }
for d in b1/one b2/one; do cached kind "$d" want .stamp make_it "$d" want; done
[ -x b2/one/sub/f ] && stamped b2/one/.stamp want || die "not whole"
[ b1/one/sub/f -ef b2/one/sub/f ] || die "not linked"
cached kind b2/one else .stamp make_it b2/one else
COPIED=1; for d in b3/disk b4/disk; do cached disk "$d" want .stamp make_it "$d" want; done
echo written >b4/disk/sub/f
[ "$(cat b3/disk/sub/f)" = made ] || die "a copy is a link"
ls cache/*`
	const want = "made b1/one\nmade b2/one\nmade b3/disk\n"
	if got := inCache(t, dir, script); len(got) < len(want) || got[:len(want)] != want {
		t.Errorf("made %q, want it to begin with %q", got, want)
	}
}

// An object is newer than its source when it is taken, or make would make it again; what cannot be
// kept is no failure.
func TestCacheFiles(t *testing.T) {
	dir := t.TempDir()
	script := `echo object >made; touch -d 2020-01-01 made
e=$(cache_entry nvcc text); cache_give "$e" made; cache_give "$e" made
touch -d 2021-01-01 source; cache_take "$e" taken; [ taken -nt source ] || die "it is old"
! cache_take "$e.none" taken2 || die "it takes what is not there"
[ ! -e taken2 ] && [ "$(find cache -type f | wc -l)" = 1 ] || die "$(find cache)"
CACHE=/proc/nothing; cache_give "$(cache_entry nvcc text)" made`
	inCache(t, dir, script)
}

func TestCacheForgets(t *testing.T) {
	dir := t.TempDir()
	inCache(t, dir, `mkdir -p cache/kind/old cache/kind/new cache/kube/old; touch -d '-31 days' cache/kind/old cache/kube/old; cache_prune`)
	for name, want := range map[string]bool{"kind/old": false, "kind/new": true, "kube/old": true} {
		if _, err := os.Stat(filepath.Join(dir, "cache", name)); (err == nil) != want {
			t.Errorf("%s: there %v, want %v", name, err == nil, want)
		}
	}
}
