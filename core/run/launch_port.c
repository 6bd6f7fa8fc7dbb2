/* A port that stays ours from the moment when it is chosen. */
#include "core/run/launch_port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bind to port 0 and let the kernel choose.  The socket stays bound and never listens: the kernel gives its port to nobody who
 * asks for any, so that of launches at the same time no two meet at one address; NCCL, which is told the port and sets
 * SO_REUSEPORT (older versions alone, later ones beside SO_REUSEADDR), may listen on it. */
assay_status assay_launch_port(int *out, char *address, size_t capacity)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    const int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "cannot create a socket: %s", strerror(errno));
    const bool ok = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) == 0 &&
                    bind(fd, (const struct sockaddr *)&a, sizeof a) == 0 &&
                    getsockname(fd, (struct sockaddr *)&a, &length) == 0;
    const int error = errno;
    if (!ok)
        close(fd);
    ASSAY_CHECK(ok, ASSAY_IO, "cannot find a free port on 127.0.0.1: %s", strerror(error));
    snprintf(address, capacity, "127.0.0.1:%d", ntohs(a.sin_port));
    *out = fd;
    return ASSAY_OK;
}
