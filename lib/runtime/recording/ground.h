// SPDX-License-Identifier: Apache-2.0
// What every room above this one stands on. A base of its classes; their sources include
// grounds.h, which has the definitions.
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
