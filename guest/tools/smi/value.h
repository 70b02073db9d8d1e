/*
 * One value of a device as text: how it is asked for and in which unit it is told. Tables of fields
 * and reports are made of these. A getter answers an nvmlReturn_t, and text only with NVML_SUCCESS.
 */
#ifndef CW_SMI_VALUE_H
#define CW_SMI_VALUE_H

#include "library.h"

#include <stdio.h>

enum { SMI_TEXT = 128 };

struct smi_source {
	int (*get)(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT]);
	size_t function; /* in struct smi_library, where the getter serves several */
	unsigned arg;
	const char *unit; /* NULL: none */
};

/* Getters by the shape of the function that they call (value.c). */
int smi_text(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_number(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_hex(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_enabled(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_yes(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_watts(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* arg: the type asked for */
int smi_typed(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* A codec's use and its period. */
int smi_engine(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* arg: 0 current, 1 pending */
int smi_mode(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* arg: 0 least, 1 most watts */
int smi_limit(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* arg: which of three numbers */
int smi_third(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* arg: SMI_FIELD; a signed number */
int smi_field(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_field_watts(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);

/* Getters of one thing each (device.c, board.c). arg says which part of it. */
int smi_driver(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_count(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_timestamp(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_capability(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_brand(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_architecture(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_virtualization(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_compute_mode(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_pstate(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_width(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]); /* lanes: "16x" */
int smi_memory(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_bar1(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_use(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_pci(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_reason(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_reasons(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_ecc(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_ecc_at(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_remapped(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_margin(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_inforom(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_gsp(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
int smi_fabric(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* The text that unit points to. */
int smi_constant(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* What drivers tell no more. */
int smi_deprecated(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);
/* What NVML has no function for. */
int smi_unsupported(nvmlDevice_t, const struct smi_source *, char out[SMI_TEXT]);

enum { SMI_TOTAL, SMI_RESERVED, SMI_USED, SMI_FREE }; /* smi_memory, smi_bar1 */
enum { SMI_GPU, SMI_MEMORY };			      /* smi_use */
enum { SMI_CORRECTED, SMI_UNCORRECTED };	      /* smi_ecc, or'ed with */
enum { SMI_VOLATILE = 0, SMI_AGGREGATE = 0x10 };
enum { SMI_L1 = 0x000, SMI_L2 = 0x100, SMI_DRAM = 0x200, SMI_REGISTERS = 0x300, SMI_TEXTURE = 0x400, SMI_CBU = 0x600, SMI_SRAM = 0x700 };
/* smi_typed of clocks */
enum { SMI_GRAPHICS_CLOCK, SMI_SM_CLOCK, SMI_MEMORY_CLOCK, SMI_VIDEO_CLOCK };
/* And of temperature thresholds. */
enum { SMI_SHUTDOWN, SMI_SLOWDOWN, SMI_MEMORY_MAX, SMI_GPU_MAX };
enum { SMI_STATE, SMI_FABRIC_STATUS, SMI_CLIQUE, SMI_CLUSTER, SMI_HEALTH, SMI_BANDWIDTH, SMI_NEVER }; /* smi_fabric */
/* Parts of a PCI address, with 0x and without; ids with as few as four digits, which lists have. */
enum { SMI_DOMAIN, SMI_BUS, SMI_DEVICE, SMI_CLASS, SMI_SUBCLASS, SMI_ID, SMI_SUBSYSTEM, SMI_ADDRESS, SMI_BARE = 0x10, SMI_SHORT = 0x20 };

#define SMI_FIELD(id, scope) ((unsigned)(id) | (unsigned)(scope) << 16)

/* Sources as the tables write them. */
#define V_NONE {smi_unsupported, 0, 0, NULL}
#define V_FN(getter, name, unit) {getter, FN(name), 0, unit}
#define V_TYPED(name, arg, unit) {smi_typed, FN(name), arg, unit}
#define V_ARG(getter, arg, unit) {getter, 0, arg, unit}

/* The value with its unit, if it has one and units are wanted; absent if the device does not say,
 * or what went wrong. */
void smi_show(nvmlDevice_t device, const struct smi_source *source, const char *absent, int units, FILE *out);
/* The same as text of SMI_TEXT + 16 bytes; the result is that of the getter. */
int smi_format(nvmlDevice_t device, const struct smi_source *source, const char *absent, int units, char *out, size_t cap);

#endif
