/* Values of options, and text that is not ours. */
#include "words.h"

#include <string.h>

int smi_decimal(const char *text, unsigned most, unsigned *out)
{
	unsigned long long value = 0;

	if (!*text)
		return 0;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return 0;
		value = value * 10 + (unsigned)(*text - '0');
		if (value > most)
			return 0;
	}
	*out = (unsigned)value;
	return 1;
}

int smi_flags(const char *text, const char *const *names, size_t count, unsigned *flags)
{
	*flags = 0;
	for (;;) {
		size_t len = strcspn(text, ","), i = 0;

		while (i < count && (strlen(names[i]) != len || memcmp(names[i], text, len)))
			i++;
		if (i == count)
			return 0;
		*flags |= 1u << i;
		if (!text[len])
			return 1;
		text += len + 1;
	}
}

/* Bytes of the UTF-8 character that begins here, 0 if none does. Overlong forms and surrogates are
 * none. */
static size_t character(const unsigned char *s)
{
	size_t len = s[0] < 0x80		   ? 1
		     : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
		     : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
		     : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
						   : 0;

	for (size_t i = 1; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
	    (s[0] == 0xf4 && s[1] >= 0x90))
		return 0;
	return len;
}

void smi_printable(char *text)
{
	for (unsigned char *s = (unsigned char *)text; *s;) {
		size_t len = character(s);
		int control = *s < ' ' || *s == 0x7f || (len == 2 && s[0] == 0xc2 && s[1] < 0xa0);

		if (len && !control) {
			s += len;
			continue;
		}
		for (size_t n = len ? len : 1; n; n--)
			*s++ = '?';
	}
}
