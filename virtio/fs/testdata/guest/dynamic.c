/* Run from the mount with loader, libc and a library from the mount. */
#include <dlfcn.h>
#include <stddef.h>

int main(void)
{
	void *h = dlopen("/mnt/lib/libanswer.so", RTLD_NOW);
	int (*answer)(void) = NULL;

	if (!h)
		return 1;
	*(void **)&answer = dlsym(h, "answer");
	return answer ? answer() : 2;
}
