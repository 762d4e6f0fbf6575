// SPDX-License-Identifier: Apache-2.0

// Go over the C header, by cgo and pkg-config: a tensor is written and fetched, then updated by a
// step of SGD, and every number is looked at.
package main

// #cgo pkg-config: stepwell
// #include <stdlib.h>
// #include <stepwell/stepwell.h>
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

const elements = 1 << 20

func check(status C.stw_status) {
	if status < 0 {
		fmt.Fprintln(os.Stderr, C.GoString(C.stw_last_error()))
		os.Exit(1)
	}
}

// What a struct of options points to is C's memory: Go's may not be stored there.
func open(directory string) *C.stw_runtime {
	nvme := (*C.stw_nvme_options)(C.calloc(1, C.sizeof_stw_nvme_options))
	defer C.free(unsafe.Pointer(nvme))
	nvme.struct_size = C.sizeof_stw_nvme_options
	nvme.path = C.CString(directory)
	defer C.free(unsafe.Pointer(nvme.path))
	nvme.budget_bytes = 64 << 20
	nvme.driver_options = C.CString("allow_tmpfs=1") // where tests may run
	defer C.free(unsafe.Pointer(nvme.driver_options))
	options := C.stw_runtime_options{struct_size: C.sizeof_stw_runtime_options, nvme: nvme,
		nvme_count: 1, host_bytes: 16 << 20}
	var opened *C.stw_runtime
	check(C.stw_runtime_open(&options, &opened))
	return opened
}

func create(stepwell *C.stw_runtime, role C.uint32_t) *C.stw_tensor {
	spec := C.stw_tensor_spec{struct_size: C.sizeof_stw_tensor_spec, role: role, dtype: C.STW_F32,
		dimensions: 1}
	spec.shape[0] = elements
	var tensor *C.stw_tensor
	check(C.stw_tensor_create(stepwell, &spec, 1, &tensor))
	return tensor
}

// Calls body with the elements of a view.
func fetch(stepwell *C.stw_runtime, tensor *C.stw_tensor, access C.uint32_t, body func([]float32)) {
	request := C.stw_fetch_request{struct_size: C.sizeof_stw_fetch_request, access: access,
		tensor: tensor}
	var view C.stw_view
	check(C.stw_fetch(stepwell, nil, &request, 1, &view))
	body(unsafe.Slice((*float32)(view.pointer), int(view.element_count)))
	check(C.stw_release(&view, 1, nil, 0))
}

func main() {
	runtime.LockOSThread() // the last error is the thread's
	stepwell := open(".")
	weights, gradient := create(stepwell, C.STW_ROLE_PARAM), create(stepwell, C.STW_ROLE_GRAD)
	fetch(stepwell, weights, C.STW_WRITE, func(values []float32) {
		for i := range values {
			values[i] = float32(i)
		}
	})
	check(C.stw_tensor_fill(gradient, 4, nil))

	sgd := C.stw_optimizer_options{struct_size: C.sizeof_stw_optimizer_options,
		algorithm: C.STW_OPTIMIZER_SGD}
	var optimizer *C.stw_optimizer
	check(C.stw_optimizer_create(stepwell, &sgd, &optimizer))
	entry := C.stw_optimizer_entry{struct_size: C.sizeof_stw_optimizer_entry, parameter: weights,
		gradient: gradient}
	check(C.stw_optimizer_add(optimizer, &entry, 1))
	hyper := C.stw_hyper{struct_size: C.sizeof_stw_hyper, lr: 0.25}
	check(C.stw_optimizer_set_hyper(optimizer, 0, &hyper))
	check(C.stw_optimizer_step(optimizer, nil, nil))
	wrong := 0
	fetch(stepwell, weights, C.STW_READ, func(values []float32) { // waits for the update
		for i := range values {
			if len(values) != elements || values[i] != float32(i)-1 {
				wrong++
			}
		}
	})
	check(C.stw_runtime_close(stepwell, 0, 0))
	fmt.Println("Go: 2^20 numbers were fetched and updated,", wrong, "are wrong")
	if wrong > 0 {
		os.Exit(1)
	}
}
