/* The library that dynamic.c opens. */
int answer(void);

int answer(void)
{
	return 43;
}
