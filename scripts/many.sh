#!/usr/bin/env bash
# Runs stages of scripts/test.sh many times side by side, for a machine with many CPUs and no
# network: each run in an overlay of one Debian, with processes, mounts and a network of its own, on
# CPUs of its own.
#
#   scripts/many.sh pack ROOT [OPTION...]          here: the Debian that `scripts/clean.sh --keep
#       setup build nvcc` left, without what only
#                                                  compiling needs, into build/many/root.tar.xz.NN
#                                                  of 47 MiB each; OPTION is one of tar's, as
#                                                  --exclude=./root/causeway/build/images/debian
#                                                  where stage guest is not wanted
#   scripts/many.sh take                           there: the pieces into build/many/root, and a
#       first build in it
#   scripts/many.sh [--cpus N] [--limit S] RUNS STAGE...   there: RUNS of each stage, N CPUs
#       (default 2) for each at a time
#
# A run that takes more than S seconds (default 1800) has failed. Of one that failed the log and
# what its scripts logged lie in build/many/runs/STAGE-RUN.keep (in OUT, if it is set, as an
# archive). Prints a row for each stage: runs, failures, shortest, median and longest time. Needs
# root, tar, xz, and memory for what each run writes (about 1 GB). The status is 0 if none failed.
set -uo pipefail
. "$(dirname "$0")/lib/common.sh"
. "$ROOT/scripts/package/chroot.sh"

many=$BUILD/many root=$BUILD/many/root

# What a run needs of the tree's build/ is there; compilers of CUDA are not: programs are built.
pack() {
  local from=$1 leave=()
  [ -x "$from/root/causeway/build/bin/causeway" ] || die "$from has no built tree: scripts/clean.sh --keep setup build nvcc"
  leave=(--exclude=./var/cache/apt --exclude=./var/lib/apt/lists --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale
    --exclude=./usr/share/i18n --exclude=./root/.cache/go-build --exclude=./root/.cache/pip --exclude=./root/.cache/causeway '--exclude=./root/go/pkg/mod/cache/download/*.zip'
    --exclude=./root/go/pkg/sumdb --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./run --exclude=./tmp
    --exclude='./root/causeway/build/cuda/*/nvvm' --exclude='./root/causeway/build/cuda/*/include' --exclude='./root/causeway/build/cuda/*/bin/[!n]*'
    --exclude='./root/causeway/build/cuda/*/bin/nvlink' --exclude=./root/causeway/build/promtool --exclude=./root/causeway/build/clang-format
    --exclude=./root/causeway/.git --exclude=./root/causeway/build/apt --exclude=./root/causeway/build/debian --exclude=./root/causeway/build/obj
    --exclude=./usr/local/go/src/cmd --exclude=./usr/local/go/test --exclude=./usr/local/go/api --exclude=./usr/local/go/doc
    --exclude='./usr/local/go/*_test.go' --exclude='./usr/local/go/*/testdata' --exclude='./root/go/*/testdata' --exclude='race_*.syso')
  mkdir -p "$many"
  rm -f "$many"/root.tar.xz.*
  tar c -C "$from" --sort=name "${leave[@]}" "${@:2}" . | xz -T0 -4 | split -b 47M -d - "$many/root.tar.xz."
  ls -l "$many"
}

# take unpacks, and builds once, so that each run finds what it compiles in a cache that they share.
take() {
  rm -rf "$root"; mkdir -p "$root" "$many/cache"
  cat "$many"/root.tar.xz.* | xz -dc | tar xi -C "$root" || die "the pieces in build/many are not whole: take all of what pack made"
  mkdir -p "$root"/{proc,sys,dev,run,tmp}; chmod 1777 "$root/tmp"
  say "unpacked: $(du -sh "$root" | cut -f1)"
  in_copy "$many/first" "0-$(($(nproc) - 1))" sh -c 'make build && cp -a build/bin build/lib /keep && go test -count=1 -run xxx -trimpath -vet=off ./host/... >/dev/null' >"$many/first.log" 2>&1 ||
    { tail -20 "$many/first.log"; die "the first build failed: see build/many/first.log"; }
  cp -a "$many/first.keep/." "$root/root/causeway/build/" && rm -rf "$many/first.keep" # further pieces may have brought newer sources
  say "built once"
}

# in_copy DIR CPUS COMMAND... runs it in /root/causeway of an overlay of the root, with a network of
# its own. What it writes lies in a file system in memory at DIR, and is gone with it, but for what
# it puts into /keep, that is DIR.keep.
in_copy() {
  local dir=$1 cpus=$2; shift 2
  mkdir -p "$dir" "$dir.keep"
  # shellcheck disable=SC2016 # the inner shell expands
  DIR=$dir LOWER=$root CACHE=$many/cache taskset -c "$cpus" unshare --mount --net --uts --ipc --propagation private bash -c '
    mount -t tmpfs -o size=16g,mode=755 tmpfs "$DIR" && mkdir "$DIR"/{up,work,all} &&
      mount -t overlay -o "lowerdir=$LOWER,upperdir=$DIR/up,workdir=$DIR/work" overlay "$DIR/all" &&
      mkdir -p "$DIR/all/keep" "$DIR/all/root/.cache/go-build" && mount --bind "$DIR.keep" "$DIR/all/keep" && mount --bind "$CACHE" "$DIR/all/root/.cache/go-build" &&
      chroot "$DIR/all" ip link set lo up || exit 125
    . "$0"; in_root "$DIR/all" env PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin GOPROXY=off GOFLAGS=-buildvcs=false GOTOOLCHAIN=local \
      sh -c "cd /root/causeway && exec \"\$@\"" - "$@"' "$ROOT/scripts/package/chroot.sh" "$@" || return
}

# one RUN STAGE runs it on the CPUs of whichever place is free, and leaves its verdict and time.
one() {
  local run=$1 stage=$2 place=$3 rc=0 start=$SECONDS keep=$many/runs/$2-$1
  in_copy "$keep" "$((place * cpus))-$((place * cpus + cpus - 1))" timeout -k 30 "$limit" sh -c \
    'scripts/test.sh "$1" >/keep/log 2>&1; rc=$?; [ $rc = 0 ] || cp -r build/logs /keep/; exit $rc' - "$stage" >"$keep.out" 2>&1 </dev/null || rc=$?
  echo "$stage $run $rc $((SECONDS - start))" >>"$many/runs/table"
  [ $rc = 0 ] && rm -rf "$keep.keep" "$keep.out"
  say "$stage, run $run: $([ $rc = 0 ] && echo passed || echo "FAILED ($rc): $(grep -hm1 -E '^(FAILED|error:|---)|failed' "$keep.keep/log" "$keep.out" 2>/dev/null)"), $((SECONDS - start)) s"
}

# all RUNS STAGE...: stages take turns, so that each has run as often as the others whenever the
# time is up.
all() {
  local runs=$1 places run stage n=0; shift
  places=$(($(nproc) / cpus))
  rm -rf "$many/runs"; mkdir -p "$many/runs"; : >"$many/runs/table"
  export -f one in_copy say; export cpus limit many root ROOT SECONDS_AT=$SECONDS
  for ((run = 1; run <= runs; run++)); do for stage; do echo "$run $stage"; done; done |
    xargs -P "$places" -L 1 --process-slot-var=PLACE bash -c '. "$ROOT/scripts/lib/common.sh"; SECONDS=$SECONDS_AT; one "$1" "$2" "$PLACE"' -
  for stage; do
    sort -n -k4 "$many/runs/table" | awk -v s="$stage" '$1 == s {t[++n] = $4; bad += $3 != 0}
      END {if (n) printf "%-10s %4d runs %4d failed   %d to %d s, median %d\n", s, n, bad, t[1], t[n], t[int((n + 1) / 2)]; else printf "%-10s never ran\n", s}'
  done
  [ -z "${OUT:-}" ] || ! compgen -G "$many/runs/*.keep" >/dev/null || tar cJf "$OUT/many-failed.tar.xz" -C "$many/runs" .
  [ "$(wc -l <"$many/runs/table")" = $((runs * $#)) ] && ! awk '$3 != 0' "$many/runs/table" | grep -q .
}

cpus=2 limit=1800
case ${1:-} in
  pack) [ $# -ge 2 ] || { header; exit 2; }; pack "${@:2}"; exit ;;
  -h | --help) header; exit ;;
esac
[ "$(id -u)" = 0 ] || die "this needs root: it makes file systems and networks"
[ "${1:-}" != take ] || { take; exit; }
while [ $# -gt 0 ]; do
  case $1 in
    --cpus) cpus=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    *) break ;;
  esac
done
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] && [ $# -ge 2 ] || { header; exit 2; }
[ -x "$root/root/causeway/build/bin/causeway" ] || die "there is no root: scripts/many.sh take"
all "$@"
