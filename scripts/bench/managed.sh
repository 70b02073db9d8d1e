#!/usr/bin/env bash
# Measures managed memory, natively and through Causeway in turn: name, seconds natively, through
# Causeway with it at the GPU and over the link, and how many times as fast as natively the former
# is. Medians of the rounds.
#
#   scripts/bench/managed.sh [--gpu N|soft] [--rounds N] [--link] [--memory SIZE] [--remote VM]
#   [--goals] [PIECE...]
#   scripts/bench/managed.sh --build     builds the program only
#
# PIECE is one of launches, turns:MIB, sparse, table, fault, idle, over:MIB; all, with 64, 1024 and
# 8192 MiB, by default. --link: measures the other kind too. over has room for two thirds of so much
# through Causeway, and natively for all of it. --memory: the vGPU's limit, which is above that
# room. --remote: measures a vGPU on a GPU server too, as `causeway run --remote VM` has it, in the
# column of the link. --goals: the exit status is 1 where a goal is missed.
set -euo pipefail
. "$(dirname "$0")/../lib/common.sh"

gpu=auto rounds=3 link= build= memory=() remote= goals= pieces=() native=()
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=1; shift ;;
    --gpu) gpu=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --link) link=1; shift ;;
    --goals) goals=1; shift ;;
    --memory) memory=(--memory "$2"); shift 2 ;;
    --remote) remote=$2; shift 2 ;;
    -h | --help) header; exit ;;
    -*) die "unknown option $1: see $0 --help" ;;
    *) pieces+=("$1"); shift ;;
  esac
done
causeway=$BUILD/bin/causeway
probe=$BUILD/bin/managed nvcc=$BUILD/cuda/13.0/bin/nvcc source=$ROOT/scripts/bench/managed/managed.cu
if [ -x "$nvcc" ] && [[ $source -nt $probe || ${source%managed.cu}over.cuh -nt $probe ]]; then
  "$nvcc" -O2 -std=c++17 -gencode arch=compute_75,code=compute_75 -gencode arch=compute_90,code=sm_90 -o "$probe" "$source"
fi
[ -x "$probe" ] || die "the benchmark is not built: run scripts/setup.sh"
[ -z "$build" ] || exit 0
[ -x "$causeway" ] || die "build/bin/causeway is missing: run make build"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-managed.XXXXXX")
on_exit 'rm -rf "$tmp"'
[[ ! $gpu =~ ^[0-9]+$ ]] || native=(env CUDA_VISIBLE_DEVICES="$gpu")
for ((i = 0; i < rounds; i++)); do
  [ "$gpu" = soft ] || "${native[@]}" "$probe" "${pieces[@]}" | sed 's/^/native /'
  CAUSEWAY_MANAGED=gpu "$causeway" run --gpu "$gpu" "${memory[@]}" -- "$probe" "${pieces[@]}" | sed 's/^/causeway /'
  [ -z "$link" ] || CAUSEWAY_MANAGED=link "$causeway" run --gpu "$gpu" "${memory[@]}" -- "$probe" "${pieces[@]}" | sed 's/^/link /'
  [ -z "$remote" ] || CAUSEWAY_MANAGED=gpu "$causeway" run --remote "$remote" -- "$probe" "${pieces[@]}" | sed 's/^/link /'
done | tee "$tmp/all" | grep ' # ' || true
awk -v goals="$goals" -v third="$([ -n "$remote" ] && echo remote || echo link)" '
  $2 != "#" { v[$2, $1, ++n[$2, $1]] = $3; if (!seen[$2]++) order[++count] = $2 }
  function median(name, who,   i, j, t, m) {
    m = n[name, who]
    if (!m) return -1
    for (i = 1; i <= m; i++) a[i] = v[name, who, i]
    for (i = 2; i <= m; i++) for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    return a[int((m + 1) / 2)]
  }
  function goal(name) { return name ~ /^turns/ ? 0.8 : name ~ /^prefetched/ ? 0.95 : name == "sparse" ? 0.7 : name == "idle" ? 1 : 0 }
  function show(x) { return x < 0 ? "-" : sprintf(x < 0.01 ? "%.2f us" : "%.3f s", x < 0.01 ? x * 1e6 : x) }
  BEGIN { format = "%-26s %12s %12s %12s %8s %s\n"; printf format, "name", "native", "causeway", third, "ratio", "goal" }
  END {
    for (i = 1; i <= count; i++) {
      name = order[i]; x = median(name, "native"); y = median(name, "causeway"); z = median(name, "link")
      g = goal(name); bad = g && x >= 0 && y > 0 && x / y < g; missed += bad
      printf format, name, show(x), show(y), show(z), x < 0 || y <= 0 ? "-" : sprintf("%.2f", x / y), g ? g (bad ? " MISSED" : "") : ""
    }
    if (goals) printf "%d goals missed\n", missed
    exit goals && (missed > 0 || count == 0)
  }' "$tmp/all"
