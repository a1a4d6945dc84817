/* One connection of the fleet: hands its standard input and output to the process that plays the
 * nodes, and lives until that lets go of it. A head starts one of these per node, as it starts an
 * ssh; it is this small so that a thousand of them cost a machine nothing.
 *
 *     pass SOCKET NODE
 */
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char room[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec node;
    struct msghdr message = {.msg_iov = &node, .msg_iovlen = 1, .msg_control = room,
                             .msg_controllen = sizeof(room)};
    struct cmsghdr *head;
    int fds[2] = {0, 1}, server = socket(AF_UNIX, SOCK_STREAM, 0);
    char status = 1;

    if (argc != 3 || strlen(argv[1]) >= sizeof(to.sun_path))
        return 2;
    strcpy(to.sun_path, argv[1]);
    node.iov_base = argv[2];
    node.iov_len = strlen(argv[2]);
    if (connect(server, (struct sockaddr *)&to, sizeof(to)))
        return 1;
    head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(head), fds, sizeof(fds));
    if (sendmsg(server, &message, 0) < 0)
        return 1;
    close(0);
    close(1);
    /* The status is one byte; none means that the process went away. */
    return read(server, &status, 1) == 1 ? status : 1;
}
