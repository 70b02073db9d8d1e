/*
 * For tests that stand for the kernel: a session's descriptors are what they were, until the test
 * says that the program has closed them. OWN_CLOSE: what closes one; OWN_ONLY: open.c is there,
 * which has the rest.
 */
#ifndef CW_OWN_FAKES_H
#define CW_OWN_FAKES_H

static int own_gone;

int cw_own_note(int fd, enum cw_mark mark, struct cw_own *own)
{
	(void)fd;
	(void)mark;
	(void)own;
	return 0;
}

int cw_own_take(int fd, enum cw_mark mark, struct cw_own *own)
{
	(void)mark;
	(void)own;
	return fd;
}

int cw_own_is(int fd, const struct cw_own *own)
{
	(void)fd;
	(void)own;
	return !own_gone;
}

#ifdef OWN_CLOSE
void cw_own_close(int fd, const struct cw_own *own)
{
	if (fd >= 0 && cw_own_is(fd, own))
		OWN_CLOSE(fd);
}
#endif

#ifndef OWN_ONLY
int cw_fd(struct cw_session *s) { return own_gone ? -1 : s->fd; }
int cw_bell(struct cw_session *s) { return own_gone ? -1 : s->bell; }
#endif

#endif
