package claim

import resourceapi "k8s.io/api/resource/v1"

// ParametersOf are those that a request will have by its class and its claim, before anything is
// allocated to it: for whoever judges a claim ahead of its node.
func ParametersOf(request string, class []resourceapi.DeviceClassConfiguration, own []resourceapi.DeviceClaimConfiguration) (Parameters, error) {
	var all []resourceapi.DeviceAllocationConfiguration
	for i := range class {
		all = append(all, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: class[i].DeviceConfiguration})
	}
	for i := range own {
		all = append(all, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim, Requests: own[i].Requests,
			DeviceConfiguration: own[i].DeviceConfiguration})
	}
	return parametersFor(request, all)
}
