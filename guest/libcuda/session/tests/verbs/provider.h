/* A libibverbs.so.1 for tests: queue pairs of one process, whose work is done when it is posted,
 * and faults. */
#ifndef CW_TESTS_VERBS_PROVIDER_H
#define CW_TESTS_VERBS_PROVIDER_H

#include <stdatomic.h>

/* The next call of its kind fails; others at their number, counted down. */
struct fake_verbs {
	_Atomic int no_devices, no_open, no_pd, no_cq, no_qp, no_modify; /* 1: fails */
	_Atomic int no_register;					 /* n: the n-th fails */
	_Atomic int no_deregister;
	_Atomic int no_post;
	/* Index of the partition that the last queue pair was readied for. */
	_Atomic int pkey;
	_Atomic int status;	    /* of the next work request, and 5 of all behind it */
	_Atomic int deaf;	    /* what is posted is taken, and nothing comes of it */
	_Atomic int live;	    /* objects that are not given back */
	_Atomic int memory;	    /* of them registered memory */
	_Atomic long read, written; /* bytes, one-sided */
	/* Each so manyth work request fails, by turns before it is done and when only word of that
	 * is lost; 0: none. */
	_Atomic long flaps;
	_Atomic long works, lost; /* of so many; that have */
	/* With flaps: queue pairs that were asked for, of which each seventh is not made; and
	 * those. */
	_Atomic long made, refused;
};

#endif
