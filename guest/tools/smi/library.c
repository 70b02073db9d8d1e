/*
 * Which libnvidia-ml.so.1 is used: that of LD_LIBRARY_PATH, as for any program, so that one who
 * chose a vGPU sees that one; then the one beside this program, on the mount or where packages put
 * both; then what the loader knows.
 */
#include "library.h"
#include "loader.h"
#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CAP = 4096 };

struct smi_library nvml;

static const char soname[] = "libnvidia-ml.so.1";

static const struct {
	const char *name;
	size_t at;
} functions[] = {
#define SMI_ROW(name) {#name, FN(name)},
	SMI_FUNCTIONS(SMI_ROW)
#undef SMI_ROW
};

void *smi_function(size_t at)
{
	void *f;

	memcpy(&f, (char *)&nvml + at, sizeof f);
	return f;
}

static void *open_in(const char *dir, size_t len, const char *below)
{
	char path[PATH_CAP];
	int n = snprintf(path, sizeof path, "%.*s%s/%s", (int)len, dir, below, soname);

	if (n <= 0 || (size_t)n >= sizeof path || access(path, R_OK))
		return NULL;
	return dlopen(path, RTLD_NOW);
}

static void *open_chosen(void)
{
	const char *at = getenv("LD_LIBRARY_PATH");
	void *lib = NULL;

	while (at && *at && !lib) {
		size_t len = strcspn(at, ":;");

		if (len)
			lib = open_in(at, len, "");
		at += len + (at[len] != 0);
	}
	return lib;
}

/* bin/nvidia-smi belongs to lib/ beside it on the mount, and to the folder above it in packages. */
static void *open_beside(void)
{
	char exe[PATH_CAP];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	char *slash;
	void *lib;

	if (n <= 0)
		return NULL;
	exe[n] = 0;
	slash = strrchr(exe, '/');
	if (!slash)
		return NULL;
	lib = open_in(exe, (size_t)(slash - exe), "/../lib");
	return lib ? lib : open_in(exe, (size_t)(slash - exe), "/..");
}

static int start(void)
{
	int res = nvml.nvmlInit_v2();

	if (res == NVML_DRIVER_NOT_LOADED) {
		printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
		       "driver "
		       "is installed and running.\n\n");
		fprintf(stderr, "Causeway: no virtual GPU is mounted here: mount -t virtiofs gpu0 /run/causeway\n");
		return STATUS_NO_DRIVER;
	}
	if (res) {
		printf("Failed to initialize NVML: %s\n", nvml.nvmlErrorString(res));
		return STATUS_OTHER;
	}
	return STATUS_OK;
}

int smi_load(void)
{
	void *lib = open_chosen();

	if (!lib)
		lib = open_beside();
	if (!lib)
		lib = dlopen(soname, RTLD_NOW);
	if (!lib) {
		printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver "
		       "is "
		       "properly installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so to "
		       "your system PATH.\n");
		return STATUS_NO_LIBRARY;
	}
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *f = dlsym(lib, functions[i].name);

		if (!f) {
			printf("%s lacks %s: it is older than this program\n", soname, functions[i].name);
			return STATUS_NO_FUNCTION;
		}
		memcpy((char *)&nvml + functions[i].at, &f, sizeof f);
	}
	return start();
}
