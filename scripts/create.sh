#!/usr/bin/env bash
# A VM without libvirt: runs the example of `causeway create --help` as it is printed, with two
# vGPUs, and looks in the guest whether both are there. Then QEMU takes the arguments that `causeway
# inspect` prints beside -m and beside those of a second vGPU.
#
#   scripts/create.sh          some 30 s; the CPU is emulated
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

kernel=6.12
causeway=$BUILD/bin/causeway
[ -x "$causeway" ] || die "build/bin/causeway is missing: run make build"
for tool in qemu-system-x86_64 jq; do have $tool || die "$tool is missing: run scripts/setup.sh"; done
tmp=$(mktemp -d "${TMPDIR:-/tmp}/causeway-create.XXXXXX")
daemon=
cleanup() {
  [ ! -S "$tmp/run/causewayd.sock" ] || for v in gpu0 gpu1; do "$causeway" delete --force "vm1/$v" 2>/dev/null || true; done
  [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null && wait "$daemon"; } || true
  [ ! -f "$tmp/run/scheduler.json" ] || kill "$(jq .pid "$tmp/run/scheduler.json")" 2>/dev/null || true
  end_below "$tmp"
  rm -rf "$tmp"
}
on_exit cleanup

passed=0
ok() { printf 'ok      %s\n' "$*"; passed=$((passed + 1)); }

export CAUSEWAY_RUN_DIR=$tmp/run
printf 'run_dir = "%s"\nstate_dir = "%s"\nlog_dir = "%s"\n' "$tmp/run" "$tmp/state" "$tmp/log" >"$tmp/causewayd.toml"
"$causeway" daemon --config "$tmp/causewayd.toml" >"$tmp/daemon.log" 2>&1 & daemon=$!
for ((i = 0; i < 600; i++)); do
  [ ! -S "$CAUSEWAY_RUN_DIR/causewayd.sock" ] || break
  kill -0 $daemon 2>/dev/null || { cat "$tmp/daemon.log" >&2; die "causewayd ended at once"; }
  sleep 0.1
done

# The guest: both vGPUs serve the libraries.
cat >"$tmp/look" <<'G'
for tag in gpu0 gpu1; do
  mkdir -p /mnt/$tag && mount -t virtiofs $tag /mnt/$tag && [ -s /mnt/$tag/lib/libcuda.so.1 ] && [ -e /mnt/$tag/session ] && echo "@found $tag"
done
echo "@memory $(grep MemTotal /proc/meminfo | tr -dc 0-9)"
G
chmod 755 "$tmp/look"
base=$BUILD/images/base-$kernel.cpio
[ -f "$base" ] || "$ROOT/images/build-initramfs.sh" $kernel "$base"
"$ROOT/images/build-initramfs.sh" --layer "$tmp/layer" "$tmp/look:/app/run"
cat "$base" "$tmp/layer" >"$tmp/initrd"

# The example, with its last dots replaced by what any VM has.
"$causeway" create --help | sed -n '/^Examples:/,/^Flags:/p' | sed '1d;$d' | sed 's/ \.\.\.$/ "$@"/' >"$tmp/example"
grep -q 'qemu-system-x86_64.*"\$@"\|memory-backend=.*"\$@"' "$tmp/example" || { cat "$tmp/example" >&2; die "causeway create --help has no example that ends in ..."; }
cat "$tmp/example"
rc=0
PATH=$BUILD/bin:$PATH timeout -k 5 600 bash -eu -o pipefail "$tmp/example" \
  -accel tcg,thread=multi -cpu "$tcg_cpu" -smp 2 -nodefaults -display none -no-reboot -serial stdio -kernel "$BUILD/kernels/$kernel/vmlinuz" \
  -initrd "$tmp/initrd" -append "$guest_append" </dev/null >"$tmp/console" 2>&1 || rc=$?
for tag in gpu0 gpu1; do
  grep -q "@found $tag" "$tmp/console" || { tail -30 "$tmp/console" >&2; die "the guest does not find $tag (QEMU: $rc)"; }
done
ok "the example of causeway create boots a VM of $(sed -n 's/\r$//; s/^@memory //p' "$tmp/console") KiB with two vGPUs"

# What inspect prints, in both orders around -m, and twice.
qemu() { printf 'info memdev\nquit\n' | timeout -k 2 120 qemu-system-x86_64 -accel tcg -nodefaults -display none -S -monitor stdio "$@" 2>&1; }
part() { "$causeway" inspect "vm1/$1" --json | jq -r ".[0].attach.$2[]" | sed 's/SIZE/512M/'; }
mapfile -t memory < <(part gpu0 qemu_memory)
mapfile -t devices < <(part gpu0 qemu; part gpu1 qemu)
for order in "-m 512M -machine q35 ${memory[*]}" "${memory[*]} -machine q35 -m 512M" "-M pc ${memory[*]} -m 512M"; do
  # shellcheck disable=SC2086 # no argument has a space
  qemu $order "${devices[@]}" >"$tmp/qemu" || { cat "$tmp/qemu" >&2; die "QEMU refuses $order ${devices[*]}"; }
  grep -q 'share: true' "$tmp/qemu" || { cat "$tmp/qemu" >&2; die "guest memory is not shared with $order"; }
done
ok "QEMU takes the arguments that causeway inspect prints before and behind -m, for two vGPUs"
echo "$passed passed, 0 failed"
