/* kvshim's public C interface. A program finds these with dlsym(RTLD_DEFAULT, ...) when
 * libkvshim.so is preloaded; nothing here needs to be called for kvshim to work. */
#ifndef KVSHIM_KVSHIM_H
#define KVSHIM_KVSHIM_H

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, "major.minor.patch". Static storage, never freed. */
const char* kvshim_version(void);

#ifdef __cplusplus
}
#endif
#endif
