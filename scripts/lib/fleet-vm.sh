# QEMU in a pod, for scripts/fleet.sh --vm; sourced after fleet.sh.

# fleet_vm_image OUT is an image with this machine's QEMU, what it loads, a Linux kernel and a guest
# that runs a CUDA program.
fleet_vm_image() {
  local kernel=6.12 qemu f files=() base
  qemu=$(command -v qemu-system-x86_64) || die "qemu-system-x86_64 is missing: run scripts/setup.sh qemu"
  base=$BUILD/images/base-$kernel.cpio
  [ -f "$base" ] || "$ROOT/images/build-initramfs.sh" $kernel "$base"
  echo "${guest_run:-exec /app/vectoradd}" >"$kube/run.sh"
  chmod 755 "$kube/run.sh"
  "$ROOT/images/build-initramfs.sh" --layer "$kube/layer" "$BUILD/tests/13.0-static/vectoradd:/app/vectoradd" "$BUILD/tests/13.0-static/rounds:/app/rounds" "$kube/run.sh:/app/run"
  cat "$base" "$kube/layer" >"$kube/initrd"
  cat >"$kube/boot" <<T
exec $qemu -accel tcg,thread=multi -cpu $tcg_cpu -smp 2 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
  -nodefaults -display none -no-reboot -serial stdio -L /usr/share/qemu -L /usr/share/seabios -kernel /boot/vmlinuz -initrd /boot/initrd \\
  -append '$guest_append causeway.tag=gpu0' -chardev socket,id=gpu0,path=/var/run/kubevirt/virtiofs-containers/gpu0.sock \\
  -device vhost-user-fs-pci,chardev=gpu0,tag=gpu0,queue-size=1024 \$MORE
T
  files=("$(command -v busybox):bin/busybox" "$qemu:$qemu" "$kube/boot:boot/run" "$kube/initrd:boot/initrd" "$BUILD/kernels/$kernel/vmlinuz:boot/vmlinuz" \
    /lib64/ld-linux-x86-64.so.2:lib64/ld-linux-x86-64.so.2)
  for f in $(ldd "$qemu" | awk '$2 == "=>" {print $3}'); do files+=("$f:$f"); done
  for f in /usr/share/qemu/{kvmvapic,linuxboot_dma,multiboot_dma,pvh}.bin /usr/share/seabios/bios-256k.bin; do [ ! -e "$f" ] || files+=("$f:$f"); done
  python3 "$ROOT/scripts/kube/image.py" "$1" causeway.test/vm:1 "${files[@]}"
}

check_vm() {
  fleet_vm_image "$kube/vm.tar"
  "$kube_bin/ctr" -a "$kube/c.sock" -n k8s.io images import --snapshotter overlayfs "$kube/vm.tar" >/dev/null
  rm "$kube/vm.tar"
  kubectl apply -f "$ROOT/scripts/kube/vmpod.yaml" >/dev/null
  await 180 "the VM's pod ends" pod_is vm Succeeded
  said vm PASSED >/dev/null || die "the guest's program does not pass: $(wrote vm | tail -20)"
  said vm '@causeway exit 0' >/dev/null || die "the guest's program fails"
  await 30 "nothing is left" no_vgpus
  ok "QEMU in a pod, user 107 without capabilities: a Linux guest's CUDA program passes, and the vGPU is gone with the pod"
}
