/* Logging to stderr, by CAUSEWAY_LOG. One write per line, so that lines of several threads do not mix. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/internal.h"

static _Atomic int level = -1;

static int log_level(void)
{
	int l = atomic_load_explicit(&level, memory_order_relaxed);
	if (cw_likely(l >= 0))
		return l;
	const char *e = getenv("CAUSEWAY_LOG");
	l = CW_LOG_ERROR;
	if (e && !strcmp(e, "none"))
		l = CW_LOG_NONE;
	else if (e && !strcmp(e, "info"))
		l = CW_LOG_INFO;
	else if (e && (!strcmp(e, "trace") || !strcmp(e, "debug")))
		l = CW_LOG_TRACE;
	atomic_store_explicit(&level, l, memory_order_relaxed);
	return l;
}

int cw_log_enabled(enum cw_log_level l) { return (int)l <= log_level(); }

void cw_log(enum cw_log_level l, const char *fmt, ...)
{
	char line[512];
	if (!cw_log_enabled(l))
		return;
	int n = snprintf(line, sizeof line, "causeway: ");
	va_list ap;
	va_start(ap, fmt);
	int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (m < 0)
		return;
	n += m;
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	line[n++] = '\n';
	ssize_t done = write(2, line, (size_t)n);
	(void)done;
}

CUresult cw_failed(const char *call, CUresult res)
{
	cw_log(CW_LOG_TRACE, "%s: %d", call, (int)res);
	return res;
}
