# What `test.sh --quick` runs: sourced after stages.sh.

quick_programs="driverapi errors graphnodes language managed modules pools streams textures threads"
quick_most=16 # packages: the unit tests of so many are compiled and run within two minutes

# changed_since prints what the working tree has otherwise than COMMIT, and what it has beside it.
changed_since() {
  git diff --name-only "$1" --
  git ls-files --others --exclude-standard
}

# quick_base prints what to compare with: where this branch left main, or the commit before if
# nothing has changed since.
quick_base() {
  local base
  if [ -n "$since" ]; then git rev-parse --verify -q "$since^{commit}" || die "no commit $since"; return; fi
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  [ -n "$(changed_since "$base")" ] || base=$(git rev-parse -q --verify HEAD^ || echo "$base")
  echo "$base"
}

# changed_packages prints the packages of files, those of testdata and the like too: FILE... on
# standard input.
changed_packages() {
  local f d
  while read -r f; do
    d=$(dirname "$f")
    while [ "$d" != . ] && ! compgen -G "$d/*.go" >/dev/null; do d=$(dirname "$d"); done
    [ "$d" = . ] || echo "causeway/$d"
  done | sort -u | while read -r f; do go list -f '{{.ImportPath}}' "$f" 2>/dev/null; done
}

# importers prints the packages that import one of those on standard input directly, themselves or
# their tests.
importers() {
  local changed; changed=$(cat)
  go list -f '{{.ImportPath}}{{range .Imports}} {{.}}{{end}}{{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}' ./... |
    awk -v changed="$changed" 'BEGIN {n = split(changed, c, "\n"); for (i = 1; i <= n; i++) is[c[i]] = 1}
      !($1 in is) {for (i = 2; i <= NF; i++) if ($i in is) {print $1; next}}'
}

# quick_stages sets stages, and what unit and programs do.
quick_stages() {
  local base files changed
  base=$(quick_base) || exit 1
  files=$(changed_since "$base")
  say "changed since $(git log -1 --format='%h, %s' "$base" | cut -c1-90): $(grep -c . <<<"$files") files"
  changed=$(changed_packages <<<"$files")
  mapfile -t quick_packages < <({ echo "$changed"; importers <<<"$changed"; } | grep .)
  stages=(build lint)
  if [ ${#quick_packages[@]} -gt $quick_most ]; then
    say "not tested of the importers, or of what changed: ${quick_packages[*]:$quick_most}"
    quick_packages=("${quick_packages[@]:0:$quick_most}")
  fi
  [ ${#quick_packages[@]} = 0 ] || stages+=(unit)
  ! grep -q '^guest/lib' <<<"$files" || stages+=(clib)
  ! grep -q '^scripts/prometheus/' <<<"$files" || stages+=(alerts)
  ! grep -qE '^host/(fleet|api|limit)/' <<<"$files" || stages+=(fleet)
  stages+=(programs)
  stage_unit() { unit_tests "${quick_packages[@]}"; }
  # shellcheck disable=SC2086
  stage_programs() {
    scripts/build-tests.sh --jobs "$jobs" --only 13.0-static $quick_programs &&
      scripts/run-tests.sh --label quick --variants 13.0-static --runner "$CAUSEWAY run --gpu soft --" $quick_programs
  }
}
