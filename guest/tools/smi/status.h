/* Exit statuses, as nvidia-smi's manual page lists them. */
#ifndef CW_SMI_STATUS_H
#define CW_SMI_STATUS_H

enum {
	STATUS_OK = 0,
	STATUS_INVALID = 2,	 /* a supplied argument or flag is invalid */
	STATUS_UNSUPPORTED = 3,	 /* the requested operation is not available on target device */
	STATUS_NOT_FOUND = 6,	 /* a query to find an object was unsuccessful */
	STATUS_NO_DRIVER = 9,	 /* the driver is not loaded */
	STATUS_NO_LIBRARY = 12,	 /* the NVML shared library couldn't be found or loaded */
	STATUS_NO_FUNCTION = 13, /* the local version of NVML doesn't implement this function */
	STATUS_OTHER = 255,	 /* other error or internal driver error */
};

#endif
