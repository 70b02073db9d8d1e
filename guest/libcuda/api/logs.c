/* cuLogs*: the messages of this library, such as what was refused and why. The worker's driver has
 * none of the application's. */
#include "api/api.h"
#include "session/logring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char cut_short[] = "The provided buffer is not large enough to hold all messages. Some messages will be missing\n";

/* [hh:mm:ss.mmm][thread][CUDA][level] text */
static size_t format(const struct cw_log_line *l, char *out, size_t room)
{
	time_t seconds = (time_t)(l->when / 1000000000);
	struct tm t;
	int n;

	localtime_r(&seconds, &t);
	n = snprintf(out, room, "[%02d:%02d:%02d.%03d][%llu][CUDA][%c] %s\n", t.tm_hour, t.tm_min, t.tm_sec,
		     (int)(l->when / 1000000 % 1000), (unsigned long long)l->thread, l->level == 0 ? 'E' : 'W', l->text);
	return n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

/* The messages from *it on (NULL: all that are kept), as text; free() it. *it becomes where the
 * next ones will be. */
static CUresult collect(CUlogIterator *it, unsigned flags, char **text, size_t *len)
{
	uint64_t end = cw_logring_count(), from = end > CW_LOG_LINES ? end - CW_LOG_LINES : 0;
	size_t room = CW_LOG_LINES * (CW_LOG_TEXT + 64u);

	(void)flags; /* the real driver ignores them */
	if (it && *it > end)
		return CUDA_ERROR_INVALID_VALUE;
	if (it && *it > from)
		from = *it;
	*text = malloc(room + 1);
	if (!*text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*len = 0;
	for (; from < end; from++) {
		struct cw_log_line l;

		if (cw_logring_get(from, &l))
			*len += format(&l, *text + *len, room + 1 - *len);
	}
	(*text)[*len] = 0;
	if (it)
		*it = (CUlogIterator)end;
	return CUDA_SUCCESS;
}

CUresult cwi_cuLogsCurrent(CUlogIterator *it, unsigned int flags)
{
	(void)flags;
	if (!it)
		return CUDA_ERROR_INVALID_VALUE;
	*it = (CUlogIterator)cw_logring_count();
	return CUDA_SUCCESS;
}

/* The newest messages that fit, under a line that says so if they are not all. */
CUresult cwi_cuLogsDumpToMemory(CUlogIterator *it, char *buffer, size_t *size, unsigned int flags)
{
	const char *from;
	char *text;
	size_t len, head = 0;
	CUresult res;

	if (!buffer || !size || *size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	res = collect(it, flags, &text, &len);
	if (res)
		return res;
	from = text;
	if (len + 1 > *size) {
		size_t fits;

		head = sizeof cut_short - 1 < *size - 1 ? sizeof cut_short - 1 : *size - 1;
		fits = *size - 1 - head;
		from = text + len - fits;
		while (from < text + len && from > text && from[-1] != '\n')
			from++;
		len = (size_t)(text + len - from);
	}
	memcpy(buffer, cut_short, head);
	memcpy(buffer + head, from, len);
	buffer[head + len] = 0;
	*size = head + len;
	free(text);
	return CUDA_SUCCESS;
}

CUresult cwi_cuLogsDumpToFile(CUlogIterator *it, const char *path, unsigned int flags)
{
	char *text;
	size_t len;
	FILE *f;
	CUresult res;

	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	res = collect(it, flags, &text, &len);
	if (res)
		return res;
	f = fopen(path, "w");
	if (!f || fwrite(text, 1, len, f) != len)
		res = CUDA_ERROR_INVALID_VALUE;
	if (f && fclose(f) != 0)
		res = CUDA_ERROR_INVALID_VALUE;
	free(text);
	return res;
}

CUresult cwi_cuLogsRegisterCallback(CUlogsCallback fn, void *data, CUlogsCallbackHandle *out)
{
	uint32_t id;

	if (!fn || !out)
		return CUDA_ERROR_INVALID_VALUE;
	id = cw_logring_listen(fn, data);
	if (!id)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (CUlogsCallbackHandle)(uintptr_t)id;
	return CUDA_SUCCESS;
}

CUresult cwi_cuLogsUnregisterCallback(CUlogsCallbackHandle handle)
{
	return cw_logring_unlisten((uint32_t)(uintptr_t)handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
