// The table of exported driver functions.
#ifndef G4_SOFT_EXPORTS_H
#define G4_SOFT_EXPORTS_H

namespace g4soft {

// Null when no such name is exported.
void* export_address(const char* name);

}  // namespace g4soft

#endif
