package lib

import (
	"os"
	"os/exec"
	"testing"
)

// kubeScript runs a cluster's frame without a cluster: what is inside says where its folder is, and
// goes on until it is ended.
const kubeScript = `set -euo pipefail
dir=$1
. common.sh
BUILD=$dir/build
. kube.sh
cat >"$dir/inside" <<'I'
#!/bin/bash
mkdir "$KUBE_FOLDER/log"
echo word >"$KUBE_FOLDER/log/program"
trap '' TERM INT # as a shell that is the first process of its name space is deaf to them
sleep 1000 &
sleep 1000 8>&- &
echo "$KUBE_FOLDER" >"$1.new" && mv "$1.new" "$1"
wait
I
chmod 755 "$dir/inside"
until_true() { until "$@"; do sleep 0.05; done; }
begin() { (kube_apart "$dir/inside" "$dir/$1") >"$dir/said" 2>&1 & outside=$!; until_true [ -e "$dir/$1" ]; folder=$(<"$dir/$1"); }
`

// TestClusterEnds: a cluster that is interrupted has left nothing when its script ends, its logs
// are kept, and what one left that was killed goes when the next begins, not before its processes
// have ended.
func TestClusterEnds(t *testing.T) {
	if os.Getuid() != 0 || exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "true").Run() != nil {
		t.Skip("no name spaces can be made here")
	}
	out, err := exec.Command("bash", "-c", kubeScript+`
begin interrupted
kill -TERM $outside
rc=0; wait $outside || rc=$?
[ $rc != 0 ] && [ ! -e "$folder" ] || die "status $rc, left: $(ls "$folder")"
[ "$(<"$BUILD/logs/fleet/program")" = word ] || die "no logs"

begin killed
apart=$(pgrep -P $outside -x unshare)
kill -KILL $outside
wait $outside || true
kube_sweep
[ -e "$folder" ] || die "it took what runs"
kill -KILL $apart
until_true flock -n "$folder/.lock" true
kube_sweep
[ ! -e "$folder" ] || die "left: $(ls "$folder")"
`, "-", t.TempDir()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
