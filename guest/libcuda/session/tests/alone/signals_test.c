/*
 * Signals and threads alone: signals.c and thread.c, whose masks, dispositions and threads are the test's own. Which signals wait while locks are held and which never do, that they are as they were afterwards, and what the library's
 * own threads begin with.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "session/ahead.h"
#include "session/internal.h"
#include "session/lock.h"
#include "session/tests/check.h"

static int f_sigaction(int signal, struct sigaction *now);
static int f_mask(int how, const sigset_t *set, sigset_t *old);
static int f_create(pthread_attr_t *attr, void *(*run)(void *), void *arg);
static int f_attr_init(pthread_attr_t *attr);
static void *f_malloc(size_t n);
static void f_free(void *p);

#define sigprocmask(how, set, old) f_mask(how, set, old)
#define pthread_create(t, attr, run, arg) ((void)(t), f_create(attr, run, arg))
#define pthread_attr_init(attr) f_attr_init(attr)
#define malloc(n) f_malloc(n)
#define free(p) f_free(p)
