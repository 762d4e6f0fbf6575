// SPDX-License-Identifier: Apache-2.0
// The base of the classes in all rooms above this one. Their sources include grounds.h for the
// definitions.
#pragma once

namespace stepwell {

class AccessRecorder;
class BackgroundErrors;
class Dispatcher;
class HandleTable;
class ViewTable;
struct Machine;

struct Ground {
    Machine &machine_;
    Dispatcher &dispatch_;
    HandleTable &handles_;
    ViewTable &views_;
    BackgroundErrors &errors_;
    AccessRecorder &recorder_;
};

}  // namespace stepwell
