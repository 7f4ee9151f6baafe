// Other processes of this host: who shares memory with us, who has ended, and Unix sockets without
// a file that say both.
#pragma once

#include <sys/types.h>

#include <string>

#include "crossdock/sys/status.h"
#include "crossdock/sys/unique_fd.h"

namespace crossdock {

// Equal in two processes exactly when they run under one kernel boot and see each other's process
// ids and shared memory: boot id, PID namespace, IPC namespace.
std::string host_identity();

// A descriptor that becomes readable when the process ends. NOT_FOUND when there is no such
// process now.
Result<UniqueFd> open_pidfd(pid_t process_id);
bool process_ended(int pidfd);

// A listening stream socket with an abstract name (no file), non-blocking, closed on exec.
// ALREADY_EXISTS when the name is taken.
Result<UniqueFd> listen_abstract(const std::string& name);
// Connects at once or fails. UNAVAILABLE when nobody listens, FAILED_PRECONDITION when the
// listener is not the process expected.
Result<UniqueFd> connect_abstract(const std::string& name, pid_t expected_process_id);
// The next waiting connection, non-blocking; invalid when there is none.
UniqueFd accept_abstract(int listen_fd);
// Which process listened, or connected, at the other end: the kernel's word. 0 when it cannot be
// seen from here.
pid_t process_behind(int socket_fd);

}  // namespace crossdock
