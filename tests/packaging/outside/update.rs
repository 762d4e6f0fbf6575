// SPDX-License-Identifier: Apache-2.0
//! Rust over the C ABI, with rustc alone: a tensor is written and fetched, then updated by a step
//! of SGD, and every number is looked at. Structs of options may end early: struct_size says where,
//! and what is missing is 0. usage: update [DIRECTORY]
use std::ffi::{c_void, CStr, CString};
use std::mem::{size_of, zeroed};
use std::os::raw::c_char;
use std::ptr::{null, null_mut};

type Handle = *mut c_void;

#[repr(C)]
struct Nvme { size: u32, flags: u32, path: *const c_char, budget_bytes: u64, driver: *const c_char,
              driver_options: *const c_char }
#[repr(C)]
struct Options { size: u32, flags: u32, name: *const c_char, group: Handle, devices: *const c_void,
                 nvme: *const Nvme, device_count: u32, nvme_count: u32, host_bytes: u64 }
#[repr(C)]
struct Spec { size: u32, flags: u32, name: *const c_char, role: u32, dtype: u32, reserved: u32,
              dimensions: u32, shape: [u64; 8] }
#[repr(C)]
struct Request { size: u32, access: u32, tensor: Handle, scope: u32, tier: u32 }
#[repr(C)]
struct View { pointer: *mut f32, bytes: u64, begin: u64, count: u64, tensor: Handle, cookie: u64,
              access: u32, scope: u32, tier: u32, device: u32 }
#[repr(C)]
struct Sgd { size: u32, algorithm: u32 }
#[repr(C)]
struct Entry { size: u32, group: u32, parameter: Handle, gradient: Handle }
#[repr(C)]
struct Hyper { size: u32, flags: u32, lr: f64 }
#[repr(C)]
struct Update { size: u32, flags: u32 }

#[link(name = "stepwell")]
extern "C" {
    fn stw_last_error() -> *const c_char;
    fn stw_runtime_open(options: *const Options, runtime: *mut Handle) -> i32;
    fn stw_runtime_close(runtime: Handle, flags: u32, timeout_ns: u64) -> i32;
    fn stw_tensor_create(runtime: Handle, specs: *const Spec, n: u32, tensors: *mut Handle) -> i32;
    fn stw_tensor_fill(tensor: Handle, value: f64, options: *const c_void) -> i32;
    fn stw_fetch(runtime: Handle, options: *const c_void, requests: *const Request, n: u32,
                 views: *mut View) -> i32;
    fn stw_release(views: *mut View, n: u32, stream: Handle, flags: u32) -> i32;
    fn stw_optimizer_create(runtime: Handle, options: *const Sgd, optimizer: *mut Handle) -> i32;
    fn stw_optimizer_add(optimizer: Handle, entries: *const Entry, n: u32) -> i32;
    fn stw_optimizer_set_hyper(optimizer: Handle, group: u32, hyper: *const Hyper) -> i32;
    fn stw_optimizer_step(optimizer: Handle, options: *const Update, result: *mut c_void) -> i32;
}

fn check(status: i32) {
    assert!(status >= 0, "{}", unsafe { CStr::from_ptr(stw_last_error()) }.to_string_lossy());
}
fn size<T>() -> u32 { size_of::<T>() as u32 }

/// Calls `body` with the elements of a view: access 0 is READ, 1 WRITE.
unsafe fn fetch(runtime: Handle, tensor: Handle, access: u32, body: impl FnOnce(&mut [f32])) {
    let request = Request { size: size::<Request>(), access, tensor, scope: 0, tier: 0 };
    let mut view: View = zeroed();
    check(stw_fetch(runtime, null(), &request, 1, &mut view));
    body(std::slice::from_raw_parts_mut(view.pointer, view.count as usize));
    check(stw_release(&mut view, 1, null_mut(), 0));
}

unsafe fn run(directory: &CStr) {
    let tmpfs = CString::new("allow_tmpfs=1").unwrap(); // where tests may run
    let nvme = Nvme { size: size::<Nvme>(), path: directory.as_ptr(), budget_bytes: 64 << 20,
                      driver_options: tmpfs.as_ptr(), ..zeroed() };
    let options = Options { size: size::<Options>(), nvme: &nvme, nvme_count: 1,
                            host_bytes: 16 << 20, ..zeroed() };
    let mut runtime = null_mut();
    check(stw_runtime_open(&options, &mut runtime));
    let spec = |role| Spec { size: size::<Spec>(), role, dtype: 1, dimensions: 1,
                             shape: [1 << 20, 0, 0, 0, 0, 0, 0, 0], ..zeroed() };
    let mut tensors = [null_mut(); 2]; // a parameter, its gradient
    check(stw_tensor_create(runtime, [spec(1), spec(2)].as_ptr(), 2, tensors.as_mut_ptr()));
    fetch(runtime, tensors[0], 1, |w| w.iter_mut().enumerate().for_each(|(i, at)| *at = i as f32));
    check(stw_tensor_fill(tensors[1], 4.0, null()));

    let mut sgd = null_mut();
    check(stw_optimizer_create(runtime, &Sgd { size: 8, algorithm: 3 }, &mut sgd));
    check(stw_optimizer_add(sgd, &Entry { size: 24, group: 0, parameter: tensors[0],
                                          gradient: tensors[1] }, 1));
    check(stw_optimizer_set_hyper(sgd, 0, &Hyper { size: 16, flags: 0, lr: 0.25 }));
    check(stw_optimizer_step(sgd, &Update { size: 8, flags: 0 }, null_mut()));
    fetch(runtime, tensors[0], 0, |w| { // waits for the update
        assert!(w.len() == 1 << 20 && w.iter().enumerate().all(|(i, &at)| at == i as f32 - 1.0));
    });
    check(stw_runtime_close(runtime, 0, 0));
}

fn main() {
    let directory = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    unsafe { run(&CString::new(directory).unwrap()) }
    println!("Rust: 2^20 numbers were fetched and updated");
}
