// SPDX-License-Identifier: Apache-2.0
//
// stepwell.hpp: the C API for C++17: owners that give back what they hold, views as typed spans, a
// step that aborts unless it is ended. Header only, no run-time type information; compiles without
// exceptions too.
//
// ERRORS. A call that can fail is made through a Status or a Result<T>. With exceptions they are
// transparent: a failure is thrown as stw::Error, so Status is OK or a remark, and Result<T> always
// has its value. Without (-fno-exceptions, or STW_NO_EXCEPTIONS defined before the include) the
// same functions return the failure: look at ok() before value(). Both are written alike:
//
//     stw::Runtime runtime = stw::Runtime::open(options).value();
//
// Destructors report nothing; call the named function (close, release, end) where the status
// matters.
//
// LIFETIME. Declare in the order of use: Group before Runtime, that before Tensor, Phase and
// Optimizer, those before Views, Step and Operation; destructors then run in the order that the C
// API asks for. Owners move and do not copy; a moved-from owner is empty and its destructor does
// nothing.
//
// THREADS. An object belongs to one thread at a time, as every C++ object does; the library behind
// it takes calls from any thread. What a call waits for is said beside its C function.
#ifndef STEPWELL_HPP
#define STEPWELL_HPP

#include <stepwell/hpp/error.hpp>
#include <stepwell/hpp/group.hpp>
#include <stepwell/hpp/memory.hpp>
#include <stepwell/hpp/operation.hpp>
#include <stepwell/hpp/optimizer.hpp>
#include <stepwell/hpp/owner.hpp>
#include <stepwell/hpp/phase.hpp>
#include <stepwell/hpp/runtime.hpp>
#include <stepwell/hpp/span.hpp>
#include <stepwell/hpp/tensor.hpp>
#include <stepwell/hpp/tensor_ref.hpp>
#include <stepwell/hpp/views.hpp>
#include <stepwell/stepwell.h>

#endif  // STEPWELL_HPP
