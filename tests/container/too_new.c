// A library that needs GLIBC_2.99, as one built on a newer system would.
int from_the_future(void);
int too_new(void);
int too_new(void) { return from_the_future(); }
