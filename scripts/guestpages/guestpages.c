// What a worker could be given of a VM's memory instead of the descriptor of all of it, and what it
// can do with that: scripts/guestpages.sh.
//
// "Guest RAM" is a memfd, sealed as QEMU's memory-backend-memfd seals it, whose pages hold their
// number. The "device" process has it; the "worker", a child without it, gets pages 8 to 15 and
// tries to reach others. Each line is one question and its answer.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, RAM = 64 << 20, FIRST = 8, LENT = 8, HIDDEN = 20 };

// <linux/udmabuf.h>, which not every distribution packs.
struct item { uint32_t memfd, pad; uint64_t offset, size; };
struct list { uint32_t flags, count; struct item item[4]; };
#define UDMABUF_CREATE_LIST _IOC(_IOC_WRITE, 0x75, 0x43, 8)

static void line(const char *what, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(const char *what, const char *format, ...) {
	va_list args;
	printf("%-58s ", what);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

static void die(const char *what) {
	printf("%s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int guest_ram(char **all) {
	int fd = memfd_create("ram", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, RAM) || fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)) die("memfd");
	*all = mmap(0, RAM, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*all == MAP_FAILED) die("mmap");
	for (uint32_t i = 0; i < RAM / PAGE; i++) memcpy(*all + (size_t)i * PAGE, &i, 4);
	return fd;
}

static uint32_t number(const char *page) {
	uint32_t n;
	memcpy(&n, page, 4);
	return n;
}

static void send_fd(int sock, int fd) {
	char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (sendmsg(sock, &m, 0) != 1) die("sendmsg");
}

static int receive_fd(int sock) {
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd = -1;
	if (recvmsg(sock, &m, 0) != 1 || !CMSG_FIRSTHDR(&m)) return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

// A second process in the worker's address space, with descriptors of its own.
struct helper {
	int sock;
	char *at; // where it maps, out
	int count;
	int supervised;
	double took; // microseconds for each mapping
};

static char stack[64 << 10] __attribute__((aligned(16)));

static int helper_once(void *arg) {
	struct helper *h = arg;
	int fd = receive_fd(h->sock);
	h->at = mmap(0, LENT * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, FIRST * PAGE);
	syscall(SYS_exit, 0);
	return 0;
}

static int filter(struct sock_filter *code, unsigned short n, unsigned flags) {
	struct sock_fprog p = {n, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &p);
}

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define IF(k, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, k, yes, no)
#define RET(k) BPF_STMT(BPF_RET | BPF_K, k)
#define ARG(n, high) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * (n) + 4 * (high))

// helper_watched maps under a filter that asks the device process about each mapping, whose
// arguments are all in registers.
static int helper_watched(void *arg) {
	struct helper *h = arg;
	int fd = receive_fd(h->sock);
	if (h->supervised) {
		struct sock_filter ask[] = {NUMBER, IF(SYS_mmap, 0, 1), RET(SECCOMP_RET_USER_NOTIF), RET(SECCOMP_RET_ALLOW)};
		int listener = filter(ask, 4, SECCOMP_FILTER_FLAG_NEW_LISTENER);
		if (listener < 0) die("listener");
		send_fd(h->sock, listener);
		syscall(SYS_close, listener);
	}
	double begin = now();
	for (int i = 0; i < h->count; i++) {
		long r = syscall(SYS_mmap, h->at + (size_t)i * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (long)(i * 2 % (RAM / PAGE)) * PAGE);
		if (r < 0) die("mmap of the helper");
	}
	h->took = (now() - begin) / h->count;
	syscall(SYS_exit, 0);
	return 0;
}

static void run_helper(int (*f)(void *), struct helper *h) {
	int pid = clone(f, stack + sizeof stack, CLONE_VM | SIGCHLD, h); // not CLONE_FILES
	if (pid < 0) die("clone");
	int status;
	if (waitpid(pid, &status, 0) != pid || status) printf("helper ended with %#x\n", status);
}

// supervise answers for the device process until the helper is gone, and counts.
static void supervise(int listener, int *asked) {
	struct seccomp_notif q;
	for (;;) {
		struct pollfd p = {.fd = listener, .events = POLLIN};
		memset(&q, 0, sizeof q);
		if (poll(&p, 1, -1) < 0 || !(p.revents & POLLIN)) return;
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &q)) return;
		++*asked;
		struct seccomp_notif_resp a = {.id = q.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &a) && errno != ENOENT) return;
	}
}

static void reached(const char *what, char *p) {
	uint32_t n = p && p != MAP_FAILED ? number(p) : 0;
	if (!p || p == MAP_FAILED) line(what, "no: %s", strerror(errno));
	else if (n >= RAM / PAGE) line(what, "no, other memory");
	else line(what, "%s (page %u)", n >= FIRST && n < FIRST + LENT ? "no" : "YES", n);
}

// attempts are what a worker, taken over, does with a mapping of its pages and no descriptor.
static void attempts(char *at, const char *who) {
	char what[99], path[99];
#define SAY(s) (snprintf(what, sizeof what, "%s: %s", who, s), what)
	snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (long)at, (long)at + LENT * PAGE);
	int fd = open(path, O_RDWR);
	reached(SAY("/proc/self/map_files"), fd < 0 ? MAP_FAILED : mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, HIDDEN * PAGE));
	fd = open("/proc/self/mem", O_RDWR);
	char page[PAGE] = {FIRST};
	reached(SAY("/proc/self/mem behind the mapping"), fd < 0 || pread(fd, page, 4, (long)at + LENT * PAGE) != 4 ? MAP_FAILED : page);
	// Of a shared mapping: another one.
	char *dup = mremap(at, 0, (HIDDEN - FIRST + 1) * PAGE, MREMAP_MAYMOVE);
	reached(SAY("mremap of nothing to more"), dup == MAP_FAILED ? dup : dup + (HIDDEN - FIRST) * PAGE);
	char *grown = mremap(at, LENT * PAGE, (HIDDEN - FIRST + 1) * PAGE, MREMAP_MAYMOVE);
	reached(SAY("mremap to more"), grown == MAP_FAILED ? grown : grown + (HIDDEN - FIRST) * PAGE);
	if (grown != MAP_FAILED) at = grown;
	errno = 0;
	reached(SAY("remap_file_pages"), remap_file_pages(at, PAGE, 0, HIDDEN, 0) ? MAP_FAILED : at);
	reached(SAY("mmap that grows down"), mmap(0, PAGE, PROT_READ, MAP_SHARED | MAP_GROWSDOWN, fd, 0));
	fflush(stdout);
#undef SAY
}

// no_growth denies what reaches beyond a mapping: mremap to a larger size (64-bit comparison of
// arguments 1 and 2), remap_file_pages.
static int no_growth(void) {
	struct sock_filter code[] = {
		NUMBER, IF(SYS_remap_file_pages, 12, 0), IF(SYS_mremap, 0, 10),
		ARG(1, 1), BPF_STMT(BPF_MISC | BPF_TAX, 0), ARG(2, 1), BPF_JUMP(BPF_JMP | BPF_JGT | BPF_X, 0, 7, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_X, 0, 0, 5),
		ARG(1, 0), BPF_STMT(BPF_MISC | BPF_TAX, 0), ARG(2, 0), BPF_JUMP(BPF_JMP | BPF_JGT | BPF_X, 0, 2, 0), RET(SECCOMP_RET_ALLOW),
		RET(SECCOMP_RET_ALLOW), RET(SECCOMP_RET_ERRNO | ENOMEM),
	};
	return filter(code, sizeof code / sizeof *code, 0);
}

// pinned asks whether a mapping can be pinned as NVIDIA's module pins what cuMemHostRegister names:
// for long, and for writing (os_lock_user_pages in kernel-open/nvidia/os-mlock.c). io_uring's
// registered buffers are taken up the same way.
static void pinned(const char *what, char *at, size_t n) {
	char params[120] = {0};
	int ring = (int)syscall(SYS_io_uring_setup, 1, params);
	struct iovec v = {at, n};
	if (ring < 0) line(what, "not known: io_uring: %s", strerror(errno));
	else if (syscall(SYS_io_uring_register, ring, 0 /* IORING_REGISTER_BUFFERS */, &v, 1)) line(what, "no: %s", strerror(errno));
	else line(what, "yes");
	if (ring >= 0) close(ring);
}

static int open_udmabuf(void) {
	int fd = open("/dev/udmabuf", O_RDWR);
	FILE *f = fd < 0 ? fopen("/proc/misc", "r") : 0;
	int minor;
	char name[64];
	while (f && fd < 0 && fscanf(f, "%d %63s", &minor, name) == 2)
		if (!strcmp(name, "udmabuf") && !mknod("/tmp/udmabuf", S_IFCHR | 0600, makedev(10, (unsigned)minor))) fd = open("/tmp/udmabuf", O_RDWR), unlink("/tmp/udmabuf");
	if (f) fclose(f);
	return fd;
}

static char *udmabuf(int ram, char *all) {
	int dev = open_udmabuf();
	if (dev < 0) {
		line("udmabuf: is there one", "no");
		return 0;
	}
	struct list l = {.count = 4};
	for (uint32_t i = 0; i < 4; i++) l.item[i] = (struct item){.memfd = (uint32_t)ram, .offset = (uint64_t)(4 * i + 1) << 20, .size = 1 << 20};
	double begin = now();
	int buf = ioctl(dev, UDMABUF_CREATE_LIST, &l);
	if (buf < 0) {
		line("udmabuf: of four pieces of a sealed memfd", "no: %s", strerror(errno));
		return 0;
	}
	line("udmabuf: of four pieces of a sealed memfd", "yes, 4 MiB in %.0f us", now() - begin);
	char *p = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, buf, 0);
	if (p == MAP_FAILED) {
		line("udmabuf: mapped", "no: %s", strerror(errno));
		return 0;
	}
	uint32_t mark = 77;
	memcpy(p + (1 << 20) + PAGE, &mark, 4);
	line("udmabuf: mapped", "yes, %s pages", number(all + (5 << 20) + PAGE) == mark ? "the guest's" : "OTHER");
	char *beyond = mmap(0, 8 << 20, PROT_READ, MAP_SHARED, buf, 0);
	line("udmabuf: mapped beyond its end", "%s", beyond == MAP_FAILED ? "no" : "YES");
	char *grown = mremap(p, 4 << 20, 8 << 20, MREMAP_MAYMOVE);
	line("udmabuf: mremap to more", "%s", grown == MAP_FAILED ? "no" : "maps, for what it is worth");
	if (grown != MAP_FAILED) p = grown;
	pinned("udmabuf: can its mapping be pinned as for cuMemHostRegister", p, 4 << 20);
	return p;
}

// The GPU, if there is one.
struct gpu {
	int (*add)(void *, size_t, unsigned);
	int (*address)(uint64_t *, void *, unsigned);
	int (*copy)(void *, uint64_t, size_t);
	int (*drop)(void *);
};

// gpu starts the driver; "" or why there is none.
static const char *gpu(struct gpu *g) {
#ifdef NO_CUDA
	(void)g;
	return "built without";
#else
	static char why[64];
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *ctx;
	if (!lib) return "no libcuda.so.1 here";
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
	int (*retain)(void **, int) = (int (*)(void **, int))dlsym(lib, "cuDevicePrimaryCtxRetain");
	int (*set)(void *) = (int (*)(void *))dlsym(lib, "cuCtxSetCurrent");
	g->add = (int (*)(void *, size_t, unsigned))dlsym(lib, "cuMemHostRegister_v2");
	g->address = (int (*)(uint64_t *, void *, unsigned))dlsym(lib, "cuMemHostGetDevicePointer_v2");
	g->copy = (int (*)(void *, uint64_t, size_t))dlsym(lib, "cuMemcpyDtoH_v2");
	g->drop = (int (*)(void *))dlsym(lib, "cuMemHostUnregister");
	int r = init(0);
	if (!r) r = retain(&ctx, 0);
	if (!r) r = set(ctx);
	snprintf(why, sizeof why, r ? "the driver answers %d" : "", r);
	return why;
#endif
}

// registered asks the driver to register a mapping. It returns the GPU's address of it, or 0.
static uint64_t registered(struct gpu *g, const char *none, const char *what, char *at, size_t n) {
	uint64_t d = 0;
	uint32_t got = 0;
	if (*none) {
		line(what, "not known: %s", none);
		return 0;
	}
	double begin = now();
	int r = g->add(at, n, 3); // portable, device map
	double took = now() - begin;
	if (r) {
		line(what, "no: %d; as IO memory: %d", r, g->add(at, n, 7));
		return 0;
	}
	r = g->address(&d, at, 0);
	if (!r) r = g->copy(&got, d, 4);
	line(what, "yes, %zu KiB in %.0f us; the GPU reads page %u (%d)", n >> 10, took, got, r);
	return r ? 0 : d;
}

// kept: does what took up a page keep it when it was unmapped, and belongs to somebody else? d is
// the GPU's address of it, or 0.
static void kept(char *at, int go, int done, struct gpu *g, uint64_t d) {
	int p[2];
	char byte = 0, page[PAGE];
	struct iovec v = {at, PAGE};
	int spliced = !pipe(p) && vmsplice(p[1], &v, 1, 0) == PAGE;
	munmap(at, LENT * PAGE);
	// The device process gives the page to somebody else.
	if (write(done, &byte, 1) != 1 || read(go, &byte, 1) != 1) die("pipe");
	const char *what = "a page that the kernel took up before it was unmapped";
	if (!spliced || read(p[0], page, PAGE) != PAGE) line(what, "not known: %s", strerror(errno));
	else line(what, "%s", number(page) == 4242 ? "still read: its NEXT owner's data" : "holds what it held");
	if (!d) return;
	uint32_t got = 0;
	int r = g->copy(&got, d, 4);
	line("a page that the GPU's driver took up before", r ? "no: %d" : got == 4242 ? "still read: its NEXT owner's data (%d)" : "holds what it held (%d)", r);
}

static void worker(int sock, int go, int done) {
	struct gpu g = {0};
	struct helper h = {.sock = sock};
	run_helper(helper_once, &h);
	if (h.at == MAP_FAILED || number(h.at) != FIRST) die("mapping by a helper");
	char path[99];
	int held = 0;
	for (int fd = 0; fd < 64; fd++) {
		char to[99] = {0};
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		held += readlink(path, to, sizeof to - 1) > 0 && strstr(to, "memfd:ram");
	}
	line("helper in the worker's memory, not of its descriptors", "maps its pages; the worker holds %d descriptors of guest RAM", held);
	pinned("helper: can its mapping be pinned as for cuMemHostRegister", h.at, LENT * PAGE);

	enum { MANY = 4096 };
	struct helper m = {.sock = sock, .count = MANY, .at = mmap(0, MANY * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
	run_helper(helper_watched, &m);
	double plain = m.took;
	m.supervised = 1;
	run_helper(helper_watched, &m);
	line("a mapping by a helper", "%.1f us; %.1f where the device process is asked", plain, m.took);

	int pid = fork();
	if (!pid) {
		attempts(h.at, "free");
		_exit(0);
	}
	waitpid(pid, 0, 0);
	if (!(pid = fork())) {
		if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) || no_growth()) die("confine");
		attempts(h.at, "confined");
		char *small = mremap(h.at, LENT * PAGE, PAGE, 0);
		line("confined: mremap to less", "%s", small == h.at ? "goes on" : "FAILS");
		_exit(0);
	}
	waitpid(pid, 0, 0);
	uint64_t d = registered(&g, gpu(&g), "helper: cuMemHostRegister", h.at, LENT * PAGE);
	kept(h.at, go, done, &g, d);
	_exit(0);
}

int main(void) {
	if (getpid() == 1) { // the only program of a VM
		mount("none", "/dev", "devtmpfs", 0, 0);
		mkdir("/proc", 0755), mkdir("/tmp", 0777);
		mount("none", "/proc", "proc", 0, 0);
		int console = open("/dev/console", O_RDWR);
		for (int i = 0; i < 3; i++) dup2(console, i);
		int pid = fork();
		if (pid) {
			while (wait(0) != pid) {}
			sync();
			reboot(RB_POWER_OFF);
		}
	}
	struct utsname u;
	uname(&u);
	line("kernel", "%s", u.release);
	char *all;
	int ram = guest_ram(&all), pair[2], go[2], done[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) || pipe(go) || pipe(done)) die("socketpair");
	fflush(stdout);
	int pid = fork();
	if (!pid) {
		close(ram), close(pair[0]);
		munmap(all, RAM);
		worker(pair[1], go[0], done[1]);
	}
	close(pair[1]);
	for (int i = 0; i < 3; i++) send_fd(pair[0], ram);
	int listener = receive_fd(pair[0]);
	int asked = 0;
	if (listener >= 0) supervise(listener, &asked);
	line("a mapping by a helper", "the device process was asked %d times", asked);
	char byte;
	if (read(done[0], &byte, 1) == 1) {
		uint32_t theirs = 4242;
		memcpy(all + FIRST * PAGE, &theirs, 4);
		if (write(go[1], &byte, 1) != 1) die("pipe");
	}
	waitpid(pid, 0, 0);
	char *p = udmabuf(ram, all);
	struct gpu g = {0};
	if (p) registered(&g, gpu(&g), "udmabuf: cuMemHostRegister", p, 4 << 20);
	return 0;
}
