/* Starting and ending the fake worker's process, on any of the carriers. */
#include <arpa/inet.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session/tests/fake_internal.h"

static void serve(int listener, const struct fake_options *o)
{
	static struct fake_worker w;
	w.o = *o;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (o->mount) {
		fake_vfs_start(&w, listener);
		fake_run(&w);
	}
	if (o->tcp) {
		fake_tcp_accept(&w, listener);
		fake_run(&w);
	}
	w.sock = accept(listener, NULL, NULL);
	struct cw_hello h;
	char control[256];
	struct iovec iov = {&h, sizeof h};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	CHECK(recvmsg(w.sock, &m, 0) == sizeof h && h.type == CW_MSG_HELLO && h.magic == CW_HELLO_MAGIC);
	int fds[2];
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fds);
	w.bell = fds[1];
	w.base = mmap(NULL, h.size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	CHECK(w.base != MAP_FAILED && h.size == CW_REGION0_SIZE);
	w.ctl = (struct cw_control_page *)w.base;
	CHECK(w.ctl->magic == CW_HELLO_MAGIC);
	struct {
		struct cw_hello h;
		char text[32];
	} r = {.h = {.magic = CW_HELLO_MAGIC, .version = CW_PROTOCOL_VERSION, .type = CW_MSG_WELCOME}};
	if (o->refuse) {
		strcpy(r.text, "no room");
		r.h.status = (uint32_t)o->refuse;
		r.h.text_len = 7;
	}
	CHECK(send(w.sock, &r, sizeof r.h + r.h.text_len, 0) > 0);
	if (o->refuse)
		_exit(0);
	fake_run(&w);
}

static int listen_unix(char *env, size_t cap)
{
	static int count;
	char name[64];
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int n = snprintf(name, sizeof name, "causeway-test-%d-%d", (int)getpid(), count++);
	memcpy(a.sun_path + 1, name, (size_t)n);
	int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CHECK(l >= 0 && bind(l, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0);
	snprintf(env, cap, "unix:@%s", name);
	return l;
}

static int listen_tcp(char *env, size_t cap)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(l >= 0 && bind(l, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(l, (struct sockaddr *)&a, &len) == 0);
	snprintf(env, cap, "tcp://127.0.0.1:%d", ntohs(a.sin_port));
	return l;
}

pid_t fake_worker_start(const struct fake_options *o)
{
	char env[80];
	int l;
	if (o->mount) {
		l = fake_vfs_mount(o->mount);
		snprintf(env, sizeof env, "%s", o->mount);
	} else {
		l = o->tcp ? listen_tcp(env, sizeof env) : listen_unix(env, sizeof env);
		CHECK(listen(l, 4) == 0);
	}
	setenv("CAUSEWAY", env, 1);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		serve(l, o);
		_exit(0);
	}
	close(l);
	return pid;
}

void fake_worker_kill(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}
