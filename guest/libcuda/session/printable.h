/* Text of a host's or a GPU server's goes to a terminal: without what would steer that. */
#ifndef CW_SESSION_PRINTABLE_H
#define CW_SESSION_PRINTABLE_H

#include <stddef.h>

/* Puts ? in the place of control characters, those of ISO 6429 in UTF-8 (C2 80 to C2 9F) among
 * them, and a space in that of a line's end. Ends the text behind n bytes. */
static inline void cw_printable(char *text, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)text[i], next = i + 1 < n ? (unsigned char)text[i + 1] : 0;
		if (c == '\n')
			text[i] = ' ';
		else if (c < ' ' || c == 0x7f)
			text[i] = '?';
		else if (c == 0xc2 && next >= 0x80 && next < 0xa0)
			text[i] = text[i + 1] = '?';
	}
	text[n] = 0;
}
#endif
