/* What the programs of the test guest share. */
#ifndef GUEST_H
#define GUEST_H

#include <stddef.h>

#define MNT "/mnt"
#define SESSION MNT "/session"

/* Scenarios: a READ's offset tells the host's control file what to do. Same numbers in
 * vm_test.go. */
enum {
	SC_SHARED = 1, /* exchange marks in all pages, then complete with 0 bytes */
	SC_LATER = 2,  /* complete after a while with "done" */
	SC_MANY = 3,   /* complete when MANY are pending */
	SC_KILL = 4,   /* complete after a while; expect RELEASE */
	SC_STAY = 5,   /* never complete: the device must take it back */
	SC_PING = 6,   /* answer PINGS increments of word 0 in word 1 */
	/* A loan: complete after its term with 0 bytes, or with EPIPE to end the session. */
	SC_TERM = 7,
};

#define REGION (1 << 20)
#define PAGE 4096
#define MANY 40
#define PINGS 2000
#define OFFSET(sc) ((long long)(sc) << 32)

void check(int ok, const char *name, const char *fmt, ...);
void insert_modules(void);
int spawn(const char *path);

void test_files(void);
void test_loans(void);
int start_staying_read(void);
void loop_sessions(void);

/* loans.c */
char *region(size_t size);
void release_region(char *p, size_t size);
int session(void);
void setup_aio(void);
long submit(int fd, int sc, char *buf, size_t size);
long complete(long n, double seconds, long long *sum);

#endif
