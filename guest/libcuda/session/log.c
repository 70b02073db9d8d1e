/* Logging to stderr, by CAUSEWAY_LOG. One write per line, so that lines of several threads do not
 * mix. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/internal.h"
#include "session/logring.h"

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
	int shown = cw_log_enabled(l);
	if (!shown && l > CW_LOG_INFO)
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
	enum { PREFIX = sizeof "causeway: " - 1, AS_ERROR = 0, AS_WARNING = 1 };
	if (l <= CW_LOG_INFO)
		cw_logring_add(l == CW_LOG_ERROR ? AS_ERROR : AS_WARNING, line + PREFIX, (size_t)(n - PREFIX));
	if (!shown)
		return;
	line[n++] = '\n';
	ssize_t done = write(2, line, (size_t)n);
	(void)done;
}

/* Error names belong to the layer above, which tests of this one lack. */
CUresult cwi_cuGetErrorName(CUresult error, const char **str) __attribute__((weak));

CUresult cw_failed(const char *call, CUresult res)
{
	char text[256];
	const char *name = NULL;
	cw_log(CW_LOG_TRACE, "%s: %d", call, (int)res);
	if (res == CUDA_ERROR_NOT_READY) /* an answer, not a failure */
		return res;
	if (cwi_cuGetErrorName)
		cwi_cuGetErrorName(res, &name);
	int n = snprintf(text, sizeof text, "Returning %d (%s) from %s", (int)res, name ? name : "unknown", call);
	cw_logring_add(0, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
	return res;
}
