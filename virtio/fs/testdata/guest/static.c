/* Run from the mount: a static program. */
int main(void)
{
	return 42;
}
