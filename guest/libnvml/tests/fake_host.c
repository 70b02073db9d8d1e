#include "fake_host.h"

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *bytes;
static size_t count;
static int asked;
static char dir[] = "/tmp/cw-nvml-XXXXXX";
static char path[64];

void *fake_answer(size_t *len)
{
	struct {
		struct cw_snapshot s;
		struct cw_device d[2];
		struct cw_process p[3];
		struct cw_pair pairs[4];
		struct cw_link l[1];
	} *a = calloc(1, sizeof *a);

	memset(a->d, 0xff, sizeof a->d); /* unknown */
	a->s = (struct cw_snapshot){.magic = CW_SNAPSHOT_MAGIC,
				    .version = CW_SNAPSHOT_VERSION,
				    .device_count = 2,
				    .process_count = 3,
				    .pair_count = 4,
				    .link_count = 1,
				    .cuda_version = 13000};
	strcpy(a->s.driver_version, "580.1.2");
	strcpy(a->s.nvml_version, "13.580.1.2");
	for (int i = 0; i < 2; i++) {
		struct cw_device *d = &a->d[i];

		snprintf(d->name, sizeof d->name, "Fake GPU %d", i);
		memset(d->vbios, 0, sizeof d->vbios);
		memset(d->uuid, 0x10 + i, sizeof d->uuid);
		d->pci_domain = 0xca50;
		d->pci_bus = 3;
		d->pci_device = (unsigned)i;
		d->major = 9;
		d->minor = 0;
		d->memory_total = 1000;
		d->memory_reserved = 10;
		d->memory_used = 300;
		d->memory_free = 690;
		d->power = 70000;
		d->power_limit = 350000;
		d->energy = 1ull << 40;
		d->clock[1] = 1980;
		d->mig_current = d->mig_pending = 0;
	}
	for (int i = 0; i < 3; i++) {
		a->p[i] = (struct cw_process){.device = i == 2, .pid = 100u + (unsigned)i, .used = 1000u * (unsigned)(i + 1)};
		snprintf(a->p[i].name, sizeof a->p[i].name, "/bin/prog%d", i);
	}
	for (unsigned i = 0; i < 4; i++)
		a->pairs[i] = (struct cw_pair){.a = i / 2, .b = i % 2, .topology = 20, .p2p = {0, 0, 5, CW_SNAPSHOT_MAGIC, 0xffffffff}};
	a->l[0] = (struct cw_link){.device = 1,
				   .link = 2,
				   .state = 1,
				   .link_version = 4,
				   .capabilities = 0x5,
				   .remote_type = 2,
				   .remote_domain = 0,
				   .remote_bus = 7,
				   .remote_device = 0,
				   .remote_id = 0x22a310de,
				   .speed = 26562};
	*len = offsetof(__typeof__(*a), l) + sizeof a->l;
	a->s.size = (unsigned)*len;
	return a;
}

void fake_serve(const void *answer, size_t len)
{
	pthread_mutex_lock(&lock);
	free(bytes);
	bytes = malloc(len + 1);
	memcpy(bytes, answer, len);
	count = len;
	pthread_mutex_unlock(&lock);
}

int fake_asked(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = asked;
	pthread_mutex_unlock(&lock);
	return n;
}

static void *serve(void *arg)
{
	int ln = (int)(long)arg;

	for (;;) {
		int fd = accept(ln, NULL, NULL);

		if (fd < 0)
			continue;
		pthread_mutex_lock(&lock);
		asked++;
		if (count && write(fd, bytes, count) != (ssize_t)count)
			abort();
		pthread_mutex_unlock(&lock);
		close(fd);
	}
	return NULL;
}

static void cleanup(void)
{
	unlink(path);
	rmdir(dir);
}

void fake_start(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char target[80];
	pthread_t t;
	size_t len;
	void *answer = fake_answer(&len);
	int ln = socket(AF_UNIX, SOCK_STREAM, 0);

	fake_serve(answer, len);
	free(answer);
	CHECK(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/nvml", dir);
	/* Also the session socket: only its presence counts. */
	snprintf(target, sizeof target, "unix:%s/nvml", dir);
	strcpy(a.sun_path, path);
	CHECK(!bind(ln, (struct sockaddr *)&a, sizeof a) && !listen(ln, 64));
	atexit(cleanup);
	CHECK(!pthread_create(&t, NULL, serve, (void *)(long)ln));
	CHECK(!setenv("CAUSEWAY", target, 1));
}
