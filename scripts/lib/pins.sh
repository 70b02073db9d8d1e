# Exact versions of everything setup.sh fetches; sourced. One place to change a pin.
# A pinned Debian version can vanish when its suite moves on: the newest of the same series is taken
# then, and said.

# What Debian 12 has in its backports; Debian 13 has QEMU 10 and libvirt 11 of its own.
PIN_BACKPORTS=bookworm-backports
PIN_QEMU='1:10.0.2+ds-2+deb13u1~bpo12+1'
PIN_SEABIOS='1.16.3-2~bpo12+1'
PIN_LIBVIRT='11.3.0-2~bpo12+1'
MIN_QEMU_MAJOR=10
MIN_LIBVIRT_MAJOR=11

# Series, suite, package pattern (a regular expression) and pinned release of the stock cloud
# kernels.
PIN_KERNELS=(
  '6.1  bookworm           linux-image-6\.1\.0-[0-9]+-cloud-amd64           linux-image-6.1.0-50-cloud-amd64'
  '6.12 bookworm-backports linux-image-6\.12\.[0-9.]+\+deb12-cloud-amd64    linux-image-6.12.95+deb12-cloud-amd64'
  '7.2  trixie-backports   linux-binary-7\.2\.[0-9.]+\+deb13-cloud-amd64    linux-binary-7.2.12+deb13-cloud-amd64'
)

# The kernel of images/build-debian.sh's guest.
PIN_GUEST_KERNEL=linux-image-6.12.107+deb13-cloud-amd64

# What virtio-fs needs, and the port that tests talk through, in insmod order. A kernel that has one
# built in simply lacks its file.
GUEST_MODULES=(virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci fuse virtiofs virtio_console)

# Debian's full kernels (scripts/rdma.sh), and what of them its guest loads: soft RoCE and its means
# of connection, NICs that QEMU emulates, one of them (igb) with virtual functions, faults of a
# link, what hands a device to a guest. Neither has siw or netdevsim.
PIN_FULL_KERNELS=(
  '6.12 bookworm-backports linux-image-6\.12\.[0-9.]+\+deb12-amd64  linux-image-6.12.95+deb12-amd64'
  '7.2  trixie-backports   linux-binary-7\.2\.[0-9.]+\+deb13-amd64  linux-binary-7.2.12+deb13-amd64'
)
RDMA_MODULES=("${GUEST_MODULES[@]}" virtio_net veth sch_netem crc32_generic rdma_rxe ib_uverbs rdma_ucm ib_ipoib igb igbvf vfio_pci)
# Of Debian 12, whose C library any newer one can stand in for.
RDMA_PACKAGES=(ibverbs-utils ibverbs-providers rdmacm-utils perftest libibverbs1 librdmacm1 libibumad3 libpci3 libnl-3-200 libnl-route-3-200 libudev1
  iproute2 libbpf1 libelf1 libmnl0 libcap2 libbsd0 libmd0 libxtables12 zlib1g libibverbs-dev librdmacm-dev)

# NVRTC and nvJitLink as PyTorch 2.11 for CUDA 13.0 brings them.
PIN_NVRTC=(nvidia-cuda-nvrtc==13.0.88 nvidia-nvjitlink==13.0.88)

# What the C is formatted by (.clang-format).
PIN_CLANG_FORMAT=clang-format==19.1.7

PIN_CUDA_13_0=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
# The 12.x and 11.x wheels carry ptxas, libdevice, headers and runtimes, but neither nvcc nor cicc:
# those come
# from Debian's non-free package, for 12.9 of the nearest 12.x that Debian has.
PIN_CUDA_12_9=(nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-cccl-cu12==12.9.27)
PIN_CUDA_12_9_DEB=('nvidia-cuda-toolkit trixie 12.4.131~12.4.1-2')
PIN_CUDA_11_8=(nvidia-cuda-nvcc-cu11==11.8.89 nvidia-cuda-runtime-cu11==11.8.89)
# nvidia-cuda-dev is here for libcudart_static.a alone, which no 11.8 wheel has.
PIN_CUDA_11_8_DEB=('nvidia-cuda-toolkit bookworm 11.8.89~11.8.0-5~deb12u1'
  'nvidia-cuda-dev bookworm 11.8.89~11.8.0-5~deb12u1')
