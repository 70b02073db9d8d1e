/* Structs that entries read or fill, with the names and layouts of the public documentation. */

typedef struct CUuuid_st {
	char bytes[16];
} CUuuid;

typedef struct CUipcEventHandle_st {
	char reserved[64];
} CUipcEventHandle;

typedef struct CUipcMemHandle_st {
	char reserved[64];
} CUipcMemHandle;

typedef struct CUdevprop_st {
	int maxThreadsPerBlock;
	int maxThreadsDim[3];
	int maxGridSize[3];
	int sharedMemPerBlock;
	int totalConstantMemory;
	int SIMDWidth;
	int memPitch;
	int regsPerBlock;
	int clockRate;
	int textureAlign;
} CUdevprop;

/* How many multiprocessors an application wants under MPS. */
typedef struct CUexecAffinityParam_st {
	CUexecAffinityType type;
	union {
		struct {
			unsigned int val;
		} smCount;
	} param;
} CUexecAffinityParam;

typedef struct CUctxCigParam_st {
	int sharedDataType;
	void *sharedData;
} CUctxCigParam;

typedef struct CUctxCreateParams_st {
	CUexecAffinityParam *execAffinityParams;
	int numExecAffinityParams;
	CUctxCigParam *cigParams;
} CUctxCreateParams;

typedef struct CUmemLocation_st {
	int type;
	int id;
} CUmemLocation;

typedef struct CUDA_MEMCPY2D_st {
	size_t srcXInBytes;
	size_t srcY;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	size_t srcPitch;
	size_t dstXInBytes;
	size_t dstY;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	size_t dstPitch;
	size_t WidthInBytes;
	size_t Height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D_st {
	size_t srcXInBytes;
	size_t srcY;
	size_t srcZ;
	size_t srcLOD;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	void *reserved0;
	size_t srcPitch;
	size_t srcHeight;
	size_t dstXInBytes;
	size_t dstY;
	size_t dstZ;
	size_t dstLOD;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	void *reserved1;
	size_t dstPitch;
	size_t dstHeight;
	size_t WidthInBytes;
	size_t Height;
	size_t Depth;
} CUDA_MEMCPY3D;

/* The same with a context per side where CUDA_MEMCPY3D has reserved pointers. */
typedef struct CUDA_MEMCPY3D_PEER_st {
	size_t srcXInBytes;
	size_t srcY;
	size_t srcZ;
	size_t srcLOD;
	CUmemorytype srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	CUarray srcArray;
	CUcontext srcContext;
	size_t srcPitch;
	size_t srcHeight;
	size_t dstXInBytes;
	size_t dstY;
	size_t dstZ;
	size_t dstLOD;
	CUmemorytype dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	CUarray dstArray;
	CUcontext dstContext;
	size_t dstPitch;
	size_t dstHeight;
	size_t WidthInBytes;
	size_t Height;
	size_t Depth;
} CUDA_MEMCPY3D_PEER;

/* Only the shapes that hold a handle or that are judged before a launch have names. */
typedef union CUlaunchAttributeValue_union {
	char pad[64];
	int cooperative;
	struct {
		unsigned int x, y, z;
	} clusterDim;
	struct {
		CUevent event;
		int flags;
		int triggerAtBlockStart;
	} programmaticEvent;
	struct {
		CUevent event;
		int flags;
	} launchCompletionEvent;
	int priority;
} CUlaunchAttributeValue;

typedef struct CUlaunchAttribute_st {
	CUlaunchAttributeID id;
	char pad[4];
	CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig_st {
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	CUlaunchAttribute *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

typedef union CUstreamBatchMemOpParams_union {
	int operation;
	cuuint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct CUasyncNotificationInfo_st {
	int type; /* 1: over the memory budget, the only one */
	union {
		struct {
			unsigned long long bytesOverBudget;
		} overBudget;
	} info;
} CUasyncNotificationInfo;

/* Three plane pointers, six sizes, three enumerations: passed by value to an entry that refuses
 * it. */
typedef struct CUeglFrame_st {
	void *plane[3];
	unsigned int size[6];
	int kind[3];
} CUeglFrame;

struct CUDA_ARRAY3D_DESCRIPTOR_st {
	size_t Width, Height, Depth;
	uint32_t Format;
	uint32_t NumChannels;
	uint32_t Flags;
};

struct CUDA_ARRAY_DESCRIPTOR_st {
	size_t Width, Height;
	uint32_t Format;
	uint32_t NumChannels;
};

struct CUDA_ARRAY_SPARSE_PROPERTIES_st {
	uint32_t width, height, depth, first_level;
	uint64_t tail;
	uint32_t flags, reserved[4];
};

struct CUDA_ARRAY_MEMORY_REQUIREMENTS_st {
	size_t size, alignment;
	uint32_t reserved[4];
};

struct CUarrayMapInfo_st {
	uint32_t type; /* 0 array, 1 mipmapped array */
	uint64_t resource;
	uint32_t subresource_type;
	uint64_t subresource[4];
	uint32_t operation, handle_type;
	uint64_t handle;
	uint64_t offset;
	uint32_t devices, flags, reserved[2];
};

struct CUDA_RESOURCE_DESC_st {
	uint32_t type;
	union {
		void *handle; /* array, mipmapped array */
		CUarray array;
		CUmipmappedArray mipmap;
		struct {
			CUdeviceptr ptr;
			uint32_t format, channels;
			size_t size;
		} linear;
		struct {
			CUdeviceptr ptr;
			uint32_t format, channels;
			size_t width, height, pitch;
		} pitch2D;
		int reserved[32];
	} res;
	uint32_t flags;
};

struct CUDA_TEXTURE_DESC_st {
	uint32_t address[3], filter, flags, anisotropy, mip_filter;
	float bias, min_clamp, max_clamp, border[4];
	int reserved[12];
};

struct CUDA_RESOURCE_VIEW_DESC_st {
	uint32_t format;
	size_t width, height, depth;
	uint32_t first_level, last_level, first_layer, last_layer, reserved[16];
};

struct CUmemAllocationProp_st {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
};

struct CUmemAccessDesc_st {
	CUmemLocation location;
	CUmemAccess_flags flags;
};

struct CUmemPoolProps_st {
	CUmemAllocationType allocType;
	CUmemAllocationHandleType handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
};

struct CUmemPoolPtrExportData_st {
	unsigned char reserved[64];
};

struct CUmemcpyAttributes_st {
	int order;
	CUmemLocation src, dst;
	unsigned int flags;
};

struct CUdevResource_st {
	int type;
	uint8_t driver[140];
};

struct CUgraphEdgeData_st {
	uint8_t from_port, to_port, type, reserved[5];
};

struct CUDA_GRAPH_INSTANTIATE_PARAMS_st {
	cuuint64_t flags;
	CUstream upload;
	CUgraphNode error_node;
	int result;
};

struct CUgraphExecUpdateResultInfo_st {
	CUgraphExecUpdateResult result;
	CUgraphNode node, from;
};

struct CUDA_KERNEL_NODE_PARAMS_v1_st {
	CUfunction func;
	unsigned int grid[3], block[3], shared;
	void **args, **extra;
};

struct CUDA_KERNEL_NODE_PARAMS_st { /* v2 and v3 */
	CUfunction func;
	unsigned int grid[3], block[3], shared;
	void **args, **extra;
	CUkernel kern;
	CUcontext ctx;
};

struct CUDA_MEMSET_NODE_PARAMS_st { /* v1; v2 adds a context */
	CUdeviceptr dst;
	size_t pitch;
	unsigned int value, element;
	size_t width, height;
};

struct CUDA_HOST_NODE_PARAMS_st {
	CUhostFn fn;
	void *data;
};

struct CUDA_MEM_ALLOC_NODE_PARAMS_st {
	CUmemPoolProps props;
	const void *access;
	size_t access_count, size;
	CUdeviceptr ptr;
};

struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st {
	CUcontext ctx;
	unsigned int count;
	CUstreamBatchMemOpParams *ops;
	unsigned int flags;
};

typedef struct CUDA_MEMCPY_NODE_PARAMS_st {
	int flags, reserved;
	CUcontext ctx;
	CUDA_MEMCPY3D copy;
} CUDA_MEMCPY_NODE_PARAMS;

typedef struct CUDA_MEMSET_NODE_PARAMS_v2_st {
	struct CUDA_MEMSET_NODE_PARAMS_st v1;
	CUcontext ctx;
} CUDA_MEMSET_NODE_PARAMS_v2;

typedef struct CUDA_CHILD_GRAPH_NODE_PARAMS_st {
	CUgraph graph;
	int ownership;
} CUDA_CHILD_GRAPH_NODE_PARAMS;

typedef struct CUDA_CONDITIONAL_NODE_PARAMS_st {
	CUgraphConditionalHandle handle;
	int type;
	unsigned int size;
	CUgraph *bodies; /* out */
	CUcontext ctx;
} CUDA_CONDITIONAL_NODE_PARAMS;

struct CUgraphNodeParams_st {
	CUgraphNodeType type;
	int reserved0[3];
	union {
		long long reserved1[29];
		struct CUDA_KERNEL_NODE_PARAMS_st kernel;
		struct CUDA_MEMCPY_NODE_PARAMS_st memcpy;
		struct CUDA_MEMSET_NODE_PARAMS_v2_st memset;
		struct CUDA_HOST_NODE_PARAMS_st host;
		struct CUDA_CHILD_GRAPH_NODE_PARAMS_st graph;
		CUevent event;
		struct CUDA_MEM_ALLOC_NODE_PARAMS_st alloc;
		CUdeviceptr free_;
		struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st batch;
		struct CUDA_CONDITIONAL_NODE_PARAMS_st conditional;
	};
	long long reserved2;
};

_Static_assert(sizeof(CUdevprop) == 56, "CUdevprop");
_Static_assert(sizeof(CUexecAffinityParam) == 8, "CUexecAffinityParam");
_Static_assert(sizeof(CUctxCreateParams) == 24, "CUctxCreateParams");
_Static_assert(sizeof(CUmemLocation) == 8, "CUmemLocation");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "CUDA_MEMCPY2D");
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "CUDA_MEMCPY3D");
_Static_assert(sizeof(CUDA_MEMCPY3D_PEER) == 200, "CUDA_MEMCPY3D_PEER");
_Static_assert(sizeof(CUlaunchAttribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig");
_Static_assert(sizeof(CUstreamBatchMemOpParams) == 48, "CUstreamBatchMemOpParams");
_Static_assert(sizeof(CUasyncNotificationInfo) == 16, "CUasyncNotificationInfo");
_Static_assert(sizeof(CUeglFrame) == 64, "CUeglFrame");
_Static_assert(sizeof(struct CUDA_ARRAY3D_DESCRIPTOR_st) == 40, "CUDA_ARRAY3D_DESCRIPTOR");
_Static_assert(sizeof(struct CUDA_ARRAY_DESCRIPTOR_st) == 24, "CUDA_ARRAY_DESCRIPTOR");
_Static_assert(sizeof(struct CUDA_ARRAY_SPARSE_PROPERTIES_st) == 48, "CUDA_ARRAY_SPARSE_PROPERTIES");
_Static_assert(sizeof(struct CUDA_ARRAY_MEMORY_REQUIREMENTS_st) == 32, "CUDA_ARRAY_MEMORY_REQUIREMENTS");
_Static_assert(sizeof(struct CUarrayMapInfo_st) == 96, "CUarrayMapInfo");
_Static_assert(sizeof(struct CUDA_RESOURCE_DESC_st) == 144, "CUDA_RESOURCE_DESC");
_Static_assert(sizeof(struct CUDA_TEXTURE_DESC_st) == 104, "CUDA_TEXTURE_DESC");
_Static_assert(sizeof(struct CUDA_RESOURCE_VIEW_DESC_st) == 112, "CUDA_RESOURCE_VIEW_DESC");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");
_Static_assert(sizeof(struct CUmemcpyAttributes_st) == 24, "CUmemcpyAttributes");
_Static_assert(sizeof(struct CUdevResource_st) == 144, "CUdevResource");
_Static_assert(sizeof(struct CUgraphEdgeData_st) == 8, "CUgraphEdgeData");
_Static_assert(sizeof(struct CUDA_GRAPH_INSTANTIATE_PARAMS_st) == 32, "CUDA_GRAPH_INSTANTIATE_PARAMS");
_Static_assert(sizeof(struct CUgraphExecUpdateResultInfo_st) == 24, "CUgraphExecUpdateResultInfo");
_Static_assert(sizeof(struct CUDA_KERNEL_NODE_PARAMS_v1_st) == 56 && sizeof(struct CUDA_KERNEL_NODE_PARAMS_st) == 72, "kernel");
_Static_assert(sizeof(struct CUDA_MEMSET_NODE_PARAMS_v2_st) == 48 && sizeof(struct CUDA_MEMCPY_NODE_PARAMS_st) == 216, "memset, memcpy");
_Static_assert(sizeof(struct CUDA_MEM_ALLOC_NODE_PARAMS_st) == 120 && sizeof(struct CUgraphNodeParams_st) == 256, "union");
