# What other checkouts of one user have made already, of exactly the same things: sourced after
# common.sh. An entry is a file or a folder named by a hash of all that decides what it is, so a
# changed pin, recipe or source is made anew; scripts/clean.sh shows that all of it can be, from
# nothing. CAUSEWAY_CACHE names another folder; if it is empty there is none.

CACHE=${CAUSEWAY_CACHE-${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}}
[ -n "${CAUSEWAY_CACHE-}" ] || CACHE=${CACHE:+$CACHE/causeway}

# cache_entry KIND TEXT [FILE...] prints the path of the entry that the text and the files' contents
# name; empty without a cache.
cache_entry() {
  local kind=$1 text=$2; shift 2
  [ -z "$CACHE" ] || echo "$CACHE/$kind/$({ printf '%s\n' "$text"; [ $# = 0 ] || cat "$@"; } | sha256sum | cut -c1-40)"
}

# cache_take ENTRY DEST puts a copy there, as if it had been made now, or fails if there is no such
# entry. A folder's files are linked where they can be: nothing may write to them in place. Disk
# images are, and so they are copied: cache_take ENTRY DEST copied.
cache_take() {
  local entry=$1 dest=$2 new=$2.cached
  [ -n "$entry" ] && [ -e "$entry" ] || return 1
  mkdir -p "$(dirname "$dest")" && rm -rf "$new" || return 1
  if [ -f "$entry" ]; then cp --reflink=auto "$entry" "$new"
  else { [ -z "${3:-}" ] && cp -al "$entry" "$new" 2>/dev/null; } || { rm -rf "$new"; cp -a --reflink=auto "$entry" "$new"; }
  fi || { rm -rf "$new"; return 1; }
  touch -c "$entry" 2>/dev/null || true
  rm -rf "$dest"
  mv "$new" "$dest"
}

# cache_give ENTRY SOURCE [copied] keeps what was made. A cache that cannot be written to, or is
# full, is no failure.
cache_give() {
  local entry=$1 source=$2 new
  [ -n "$entry" ] && [ ! -e "$entry" ] || return 0
  { mkdir -p "$(dirname "$entry")" && new=$(mktemp -d "$entry.XXXXXX"); } 2>/dev/null || return 0
  if { [ -d "$source" ] && [ -z "${3:-}" ] && cp -al "$source" "$new/it"; } 2>/dev/null || { rm -rf "$new/it"; cp -a --reflink=auto "$source" "$new/it"; } 2>/dev/null; then
    mv -T "$new/it" "$entry" 2>/dev/null || true # another was quicker
    touch -c "$entry" 2>/dev/null || true
  fi
  rm -rf "$new"
}

# cache_prune removes what was not used for 30 days: a use is what touches an entry. Programs of
# Kubernetes (lib/kube.sh) are used without.
cache_prune() { [ -z "$CACHE" ] || find "$CACHE" -mindepth 2 -maxdepth 2 ! -path "$CACHE/kube/*" -mtime +30 -exec rm -rf {} + 2>/dev/null || true; }

# cached KIND DEST WANT STAMP COMMAND... takes the folder DEST from the cache, or has it made by the
# command and keeps it. The file STAMP in it holds WANT, which with the recipes (setup.sh, lib/ and
# images/) decides what it is; COPIED=1 has its files copied, not linked.
cached() {
  local kind=$1 dest=$2 want=$3 stamp=$4 entry; shift 4
  entry=$(cache_entry "$kind" "$want" "$ROOT"/scripts/setup.sh "$ROOT"/scripts/lib/{apt,pins,setup-*}.sh "$ROOT"/images/*.sh)
  if cache_take "$entry" "$dest" ${COPIED:+copied} && stamped "$dest/$stamp" "$want"; then
    say "${dest#"$ROOT"/} is there from another checkout ($CACHE)"
    return
  fi
  "$@"
  stamped "$dest/$stamp" "$want" || die "$dest has no stamp $stamp"
  cache_give "$entry" "$dest" ${COPIED:+copied}
  cache_prune
}
