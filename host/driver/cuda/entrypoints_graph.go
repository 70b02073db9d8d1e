package cuda

// graphEntryPoints are the driver functions of graphs and stream capture.
type graphEntryPoints struct {
	cuStreamBeginCapture_v2, cuStreamBeginCaptureToGraph, cuStreamEndCapture, cuStreamIsCapturing      entry
	cuStreamGetCaptureInfo_v3, cuStreamUpdateCaptureDependencies_v2, cuThreadExchangeStreamCaptureMode entry
	cuGraphCreate, cuGraphDestroy, cuGraphClone, cuGraphAddNode_v2, cuGraphDestroyNode                 entry
	cuGraphNodeGetType, cuGraphNodeSetParams, cuGraphExecNodeSetParams, cuGraphNodeFindInClone         entry
	cuGraphKernelNodeGetParams_v2, cuGraphMemcpyNodeGetParams, cuGraphMemsetNodeGetParams              entry
	cuGraphHostNodeGetParams, cuGraphChildGraphNodeGetGraph, cuGraphEventRecordNodeGetEvent            entry
	cuGraphEventWaitNodeGetEvent, cuGraphMemAllocNodeGetParams, cuGraphMemFreeNodeGetParams            entry
	cuGraphBatchMemOpNodeGetParams                                                                     entry
	cuGraphGetNodes, cuGraphGetRootNodes, cuGraphGetEdges_v2, cuGraphNodeGetDependencies_v2            entry
	cuGraphNodeGetDependentNodes_v2, cuGraphAddDependencies_v2, cuGraphRemoveDependencies_v2           entry
	cuGraphConditionalHandleCreate, cuGraphKernelNodeGetAttribute, cuGraphKernelNodeSetAttribute       entry
	cuGraphKernelNodeCopyAttributes, cuGraphDebugDotPrint                                              entry
	cuGraphInstantiateWithFlags, cuGraphInstantiateWithParams, cuGraphExecDestroy, cuGraphLaunch       entry
	cuGraphUpload, cuGraphExecUpdate_v2, cuGraphNodeSetEnabled, cuGraphNodeGetEnabled                  entry
	cuDeviceGetGraphMemAttribute, cuDeviceSetGraphMemAttribute, cuDeviceGraphMemTrim                   entry
	cuUserObjectCreate, cuUserObjectRetain, cuUserObjectRelease, cuGraphRetainUserObject               entry
	cuGraphReleaseUserObject                                                                           entry
}
