/* Values of options, and text that is not ours. */
#ifndef CW_SMI_WORDS_H
#define CW_SMI_WORDS_H

#include <stddef.h>

/* A whole number of decimal digits, at most most. False: it is none. */
int smi_decimal(const char *text, unsigned most, unsigned *out);
/* Words with commas between them, each of which is one of count names: bit i of flags for names[i].
 * False: another word. */
int smi_flags(const char *text, const char *const *names, size_t count, unsigned *flags);
/* Puts question marks for what is no printable UTF-8: names of programs are their users' choice,
 * and terminals and XML are not. */
void smi_printable(char *text);

#endif
