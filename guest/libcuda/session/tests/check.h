/* CHECK for tests, and their children, that end with the first thing that is not so. */
#ifndef CW_TESTS_CHECK_H
#define CW_TESTS_CHECK_H

#include <stdio.h>
#include <unistd.h>

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #cond); \
			_exit(1); \
		} \
	} while (0)

#endif
