/* Where a session is looked for: where CAUSEWAY says, else on the mount that the library is of,
 * else at /run/causeway; a program is told where that was. */
#include <fcntl.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session/internal.h"
#include "session/tests/fake_worker.h"

/* The carrier, and why there is no session, of a program that opens one with this CAUSEWAY (NULL:
 * none). */
static void told(const char *program, const char *env, char *out, size_t cap)
{
	int p[2], st;
	CHECK(pipe(p) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(p[1], 1);
		if (env)
			setenv("CAUSEWAY", env, 1);
		else
			unsetenv("CAUSEWAY");
		execl(program, program, "open", (char *)NULL);
		_exit(3);
	}
	close(p[1]);
	size_t n = 0;
	for (ssize_t r; n < cap - 1 && (r = read(p[0], out + n, cap - 1 - n)) > 0;)
		n += (size_t)r;
	out[n] = 0;
	close(p[0]);
	CHECK(waitpid(pid, &st, 0) == pid && st == 0);
}

static void copy(const char *to)
{
	struct stat st;
	int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
	CHECK(in >= 0 && out >= 0 && fstat(in, &st) == 0);
	for (off_t done = 0; done < st.st_size;)
		CHECK(sendfile(out, in, &done, (size_t)(st.st_size - done)) > 0);
	close(in);
	close(out);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "open")) {
		CUresult r = cw_session_open();
		printf("%s %d %s\n", cw_s.carrier ? cw_s.carrier->name : "-", (int)r, cw_s.why);
		return 0;
	}
	char mount[] = "/tmp/causeway-where-XXXXXX", lib[64], program[80], session[64], said[1024];
	setenv("CAUSEWAY_LOG", "none", 1);
	CHECK(mkdtemp(mount) != NULL);
	snprintf(lib, sizeof lib, "%s/lib", mount);
	snprintf(program, sizeof program, "%s/libcuda.so.1", lib);
	snprintf(session, sizeof session, "%s/session", mount);
	CHECK(mkdir(lib, 0700) == 0);
	copy(program);
	told(program, NULL, said, sizeof said); /* no mount */
	CHECK(!strncmp(said, "virtiofs ", 9) && strstr(said, "/run/causeway") && !strstr(said, mount));
	int fd = open(session, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	close(fd);
	told(program, NULL, said, sizeof said);
	CHECK(!strncmp(said, "virtiofs ", 9) && strstr(said, mount) && !strstr(said, "/run/causeway"));
	told(program, "", said, sizeof said);
	CHECK(strstr(said, mount) != NULL);
	static const char *const others[][2] = {
		{"/nowhere/at/all", "virtiofs 100 "},
		{"unix:/nowhere/at/all", "unix 100 "},
		{"tcp://127.0.0.1:1", "tcp 100 "},
		{"nowhere", "- 999 CAUSEWAY=nowhere is none of"},
	};
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		told(program, others[i][0], said, sizeof said);
		CHECK(!strncmp(said, others[i][1], strlen(others[i][1])) && !strstr(said, mount));
	}
	unlink(session);
	unlink(program);
	rmdir(lib);
	rmdir(mount);
	puts("where_test ok");
	return 0;
}
