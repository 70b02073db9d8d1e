/* Keys, settings, entries, and what becomes of damaged ones. */
#include "cache/tests/cache_test.h"
#include "cache/xxh64.h"

static void digests(void)
{
	static const struct {
		size_t len;
		/* RFC 7693's function with 32 bytes of digest, computed by Python's hashlib */
		const char *want;
	} list[] = {
		{0, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
		{1280, "82628cbfc9689e234b0923a531f4578fe2e7138a03e2f81ed6cde97517336650"},
	};
	struct cw_cache_key key;
	unsigned char data[1280];
	char text[CW_CACHE_NAME];
	struct cw_blake2b b;

	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)i;
	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		for (size_t piece = 1; piece <= 300; piece++) { /* however it comes */
			cw_blake2b_init(&b);
			for (size_t at = 0; at < list[i].len; at += piece)
				cw_blake2b_add(&b, data + at, piece < list[i].len - at ? piece : list[i].len - at);
			cw_blake2b_end(&b, key.digest);
			cw_cache_name(text, &key);
			CHECK(!strcmp(text, list[i].want));
		}
	cw_cache_data_key(&key, "abc", 3);
	cw_cache_name(text, &key);
	CHECK(!strcmp(text, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"));
}

static void sums(void)
{
	static const struct {
		size_t len;
		uint64_t want; /* the xxhash library's */
	} list[] = {
		{0, 0xef46db3751d8e999},  {1, 0xe934a84adb052768},  {3, 0xe5c7bb4533bc65dd},   {4, 0xffced8604453cc1e},
		{7, 0x14cc643f630c72d2},  {8, 0x884a173614b81b8d},  {31, 0xc346d2b59b4d8ee1},  {32, 0xcbf59c5116ff32b4},
		{33, 0x0c535d1acafb8ead}, {63, 0xe26aa9e2a95f8e4f}, {100, 0x6ac1e58032166597}, {1280, 0xafc184ad7938a354},
	};
	unsigned char data[1280];

	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (unsigned char)i;
	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		CHECK(cw_xxh64(data, list[i].len) == list[i].want);
}

/* Whatever differs makes another key. */
static void keys(void)
{
	const struct cw_cache_source list[] = {
		{.kind = 1, .options = "ab", .host = "c"},
		{.kind = 2, .options = "ab", .host = "c"},
		{.kind = 1, .options = "a", .host = "bc"},
		{.kind = 1, .options = "ab", .host = "c", .compiler = ""},
		{.kind = 1, .options = "ab", .compiler = "c"},
		{.kind = 1, .options = "ab", .host = "c", .arch = 90},
		{.kind = 1, .options = "ab", .host = "c", .variant = 90},
		{.kind = 1, .options = "ab", .host = "c", .data = {{1}}},
		{.kind = 1, .options = "ab", .host = "c", .from = {{1}}},
	};
	enum { N = sizeof list / sizeof *list };
	struct cw_cache_key key[N], again;

	for (int i = 0; i < N; i++) {
		cw_cache_key(&key[i], &list[i]);
		cw_cache_key(&again, &list[i]);
		CHECK(!memcmp(&key[i], &again, sizeof again));
		for (int j = 0; j < i; j++)
			CHECK(memcmp(&key[i], &key[j], sizeof key[i]));
	}
}

static void settings(void)
{
	static const uint64_t usual = 1ull << 30;
	static const struct {
		const char *disable, *path, *size, *home;
		int disabled;
		uint64_t max;
		const char *folder;
	} list[] = {
		{NULL, NULL, NULL, "/home/a", 0, usual, "/home/a/.nv/ComputeCache"},
		{"1", "/x", NULL, "/home/a", 1, usual, "/x"},
		{"0", "/x/", "", "/home/a", 0, 0, "/x/"},
		{"", NULL, "123", "/home/a", 0, 123, "/home/a/.nv/ComputeCache"},
		{"2", "", "0", "/home/a", 0, 0, ""},
		{"true", NULL, "-1", "", 0, 0, ""},
		{NULL, NULL, "99k", NULL, 0, 99, ""},
		{NULL, NULL, "k", NULL, 0, 0, ""},
		{NULL, NULL, "4294967296", NULL, 0, 4ull << 30, ""},
		{NULL, NULL, "4294967297", NULL, 0, 4ull << 30, ""},
		{NULL, NULL, "99999999999999999999999", NULL, 0, 4ull << 30, ""},
	};
	static const char *const names[] = {"CUDA_CACHE_DISABLE", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "HOME"};
	char lengthy[PATH_MAX + 2];
	struct cw_cache_settings s;

	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		const char *values[] = {list[i].disable, list[i].path, list[i].size, list[i].home};

		for (int v = 0; v < 4; v++)
			CHECK((values[v] ? setenv(names[v], values[v], 1) : unsetenv(names[v])) == 0);
		cw_cache_settings_read(&s);
		CHECK(s.disabled == list[i].disabled && s.max == list[i].max && !strcmp(s.folder, list[i].folder));
	}
	memset(lengthy, 'x', sizeof lengthy);
	lengthy[sizeof lengthy - 1] = 0;
	setenv("CUDA_CACHE_PATH", lengthy, 1);
	cw_cache_settings_read(&s);
	CHECK(!s.folder[0]);
	setenv("CUDA_CACHE_PATH", "/first", 1);
	CHECK(!strcmp(cw_cache_settings()->folder, "/first"));
	setenv("CUDA_CACHE_PATH", "/second", 1); /* a process has one */
	CHECK(!strcmp(cw_cache_settings()->folder, "/first"));
}

static void round_trips(void)
{
	static const size_t sizes[] = {0, 1, 15, 16, 4095, 4096, 4097, 1 << 20, 5 << 20};
	enum { N = sizeof sizes / sizeof *sizes };

	for (int i = 0; i < N; i++) {
		CHECK(get(i, sizes[i]) == -ENOENT);
		CHECK(put(i, sizes[i]) == 0);
		CHECK(get(i, sizes[i]) == 0);
		CHECK(put(i, sizes[i]) == 0);
	}
	for (int i = 0; i < N; i++)
		CHECK(get(i, sizes[i]) == 0);
	CHECK(get(N, 0) == -ENOENT);
}

/* --- damage ----------------------------------------------------------------------------------- */

static size_t load(const char *path, unsigned char *buf, size_t cap)
{
	FILE *f = fopen(path, "r");
	size_t n;

	CHECK(f);
	n = fread(buf, 1, cap, f);
	fclose(f);
	return n;
}

static void store(const char *path, const unsigned char *buf, size_t len)
{
	FILE *f = fopen(path, "w");

	CHECK(f && chmod(path, 0600) == 0 && fwrite(buf, 1, len, f) == len && fclose(f) == 0);
}

/* A damaged file is no hit, is removed, and the entry can be made again. */
static void refused(const char *path)
{
	CHECK(get(1, 40) != 0 && !there(path));
	CHECK(put(1, 40) == 0 && get(1, 40) == 0);
}

static void damaged(void)
{
	unsigned char good[4096], bad[4096];
	char path[2 * PATH_MAX], other[2 * PATH_MAX];
	unsigned x = 12345;
	size_t len;

	CHECK(put(1, 40) == 0);
	entry_path(path, 1);
	len = load(path, good, sizeof good);
	for (size_t bit = 0; bit < 8 * len; bit += 7) {
		memcpy(bad, good, len);
		bad[bit / 8] ^= (unsigned char)(1 << bit % 8);
		store(path, bad, len);
		refused(path);
	}
	for (size_t n = 0; n < len; n++) {
		store(path, good, n);
		refused(path);
	}
	memset(bad, 0, sizeof bad);
	memcpy(bad, good, len);
	store(path, bad, len + 1);
	refused(path);
	for (int i = 0; i < 1000; i++) { /* several bytes, any length */
		memcpy(bad, good, len);
		for (int k = 0; k <= i % 5; k++)
			x ^= x << 13, x ^= x >> 17, x ^= x << 5, bad[x % len] = (unsigned char)(x >> 8);
		if (!memcmp(bad, good, len))
			continue;
		store(path, bad, i % 3 ? len : x % len);
		refused(path);
	}
	CHECK(put(2, 40) == 0); /* another entry's file */
	entry_path(other, 2);
	CHECK(rename(other, path) == 0);
	refused(path);
}

/* What is no plain file of ours alone. */
static void odd(void)
{
	char path[2 * PATH_MAX], other[2 * PATH_MAX];

	entry_path(path, 1);
	entry_path(other, 2);
	CHECK(put(1, 40) == 0 && chmod(path, 0620) == 0);
	refused(path);
	CHECK(rename(path, other) == 0 && symlink(other, path) == 0);
	refused(path);
	CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
	refused(path);
	CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
	CHECK(get(1, 40) != 0 && put(1, 40) != 0);
	CHECK(rmdir(path) == 0 && put(1, 40) == 0);
	if (geteuid() == 0) {
		CHECK(chown(path, 65534, 65534) == 0);
		refused(path);
	}
	cache.max = 8192; /* kept when more was allowed */
	CHECK(put(3, 20000) == -EFBIG);
	cache.max = 1 << 30;
	CHECK(put(3, 20000) == 0);
	cache.max = 8192;
	CHECK(get(3, 20000) == -EBADMSG && get(3, 20000) == -ENOENT);
	cache.max = 1 << 30;
}

int main(void)
{
	alarm(1100);
	digests();
	sums();
	keys();
	settings();
	fresh_cache();
	round_trips();
	damaged();
	odd();
	remove_cache();
	return 0;
}
